// grid (12, 1, 1), block (128, 1, 1)
// grid (2, 1, 1), block (256, 1, 1)
#ifndef EINSAT_FUNCTIONS
#define EINSAT_FUNCTIONS
static __device__ __forceinline__ float einsat_max(float a, float b) { return a > b || a != a ? a : b; }
static __device__ __forceinline__ float einsat_min(float a, float b) { return a < b || a != a ? a : b; }
static __device__ __forceinline__ float einsat_sign(float a) { return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : a; }
static __device__ __forceinline__ int einsat_quotient(int a, int b) { return a / b - (a % b < 0); }
static __device__ __forceinline__ int einsat_remainder(int a, int b) { return a % b < 0 ? a % b + b : a % b; }
#endif
extern "C" __global__ void __launch_bounds__(128, 7) mat_mul_relu_bd82f09598fa4466_parts(const float* __restrict__ in0, const float* __restrict__ in1, float* __restrict__ scratch) {
  alignas(16) __shared__ float lefts[2][32][12];
  alignas(16) __shared__ float rights[2][32][68];
  const int row = (int)(blockIdx.x / 1u % 3u) * 8;
  const int column = (int)(blockIdx.x % 1u) * 64;
  const int part = (int)(blockIdx.x / 3u);
  const int begin = part * 5, end = min(begin + 5, 20);
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int y = (int)(warp / 2u * 4 + lane / 8u);
  const int x = (int)(warp % 2u * 8 + lane % 8u);
  float left_staged[2];
  float right_staged[16];
  float sums[1][4] = {};
  for (int stage = begin; stage <= end; ++stage) {
    if (stage < end) {
      {
        const int first = stage * 32;
        #pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int k = (int)((threadIdx.x + j * 128u) % 32u), m = (int)((threadIdx.x + j * 128u) / 32u);
          const int term = first + k;
          float staged = 0.0f;
          {
            const int across = row + m;
            const int i1 = across;
            const int k3 = term;
            const float v_1 = in0[i1 * 640 + k3];
            staged = v_1;
          }
          left_staged[j] = staged;
        }
      }
      {
        const int first = stage * 32;
        #pragma unroll
        for (int j = 0; j < 16; ++j) {
          const int m = (int)((threadIdx.x + j * 128u) % 64u), k = (int)((threadIdx.x + j * 128u) / 64u);
          const int term = first + k;
          float staged = 0.0f;
          if (column + m < 20) {
            const int across = column + m;
            const int i2 = across;
            const int k3 = term;
            const float v_2 = in1[i2 + k3 * 20];
            staged = v_2;
          }
          right_staged[j] = staged;
        }
      }
    }
    if (stage > begin) {
      const int half = (stage - 1) % 2;
      #pragma unroll
      for (int k = 0; k < 32; ++k) {
        float left[1];
        left[0] = lefts[half][k][0 + y * 1];
        float right[4];
        const float4 read_3 = *(const float4*)&rights[half][k][0 + x * 4];
        right[0] = read_3.x;
        right[1] = read_3.y;
        right[2] = read_3.z;
        right[3] = read_3.w;
        #pragma unroll
        for (int i = 0; i < 1; ++i) {
          #pragma unroll
          for (int j = 0; j < 4; ++j) sums[i][j] += left[i] * right[j];
        }
      }
    }
    if (stage < end) {
      #pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int k = (int)((threadIdx.x + j * 128u) % 32u), m = (int)((threadIdx.x + j * 128u) / 32u);
        lefts[stage % 2][k][m] = left_staged[j];
      }
      #pragma unroll
      for (int j = 0; j < 16; ++j) {
        const int m = (int)((threadIdx.x + j * 128u) % 64u), k = (int)((threadIdx.x + j * 128u) / 64u);
        rights[stage % 2][k][m] = right_staged[j];
      }
    }
    __syncthreads();
  }
  #pragma unroll
  for (int i = 0; i < 1; ++i) {
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int m = row + i / 1 * 8 + y * 1 + i % 1, n = column + j / 4 * 64 + x * 4 + j % 4;
      if (m < 24 && n < 20) {
        scratch[part * 480 + (0) * 480 + m * 20 + n] = sums[i][j];
      }
    }
  }
}
extern "C" __global__ void __launch_bounds__(256) mat_mul_relu_bd82f09598fa4466(const float* __restrict__ in0, const float* __restrict__ in1, const float* __restrict__ scratch, float* __restrict__ out) {
  const unsigned flat = blockIdx.x * 256u + threadIdx.x;
  if (flat >= 480u) return;
  const int i2 = (int)(flat % 20u);
  const int i1 = (int)(flat / 20u);
  const int place_2 = (0) * 480 + (i1) * 20 + i2;
  float sum_1 = 0.0f;
  #pragma unroll
  for (int part = 0; part < 4; ++part) sum_1 += scratch[part * 480 + place_2];
  const float v_3 = einsat_max(sum_1, 0.0f);
  out[i1 * 20 + i2] = v_3;
}
