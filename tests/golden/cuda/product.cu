// grid (4, 1, 1), block (256, 1, 1)
#ifndef EINSAT_FUNCTIONS
#define EINSAT_FUNCTIONS
static __device__ __forceinline__ float einsat_max(float a, float b) { return a > b || a != a ? a : b; }
static __device__ __forceinline__ float einsat_min(float a, float b) { return a < b || a != a ? a : b; }
static __device__ __forceinline__ float einsat_sign(float a) { return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : a; }
static __device__ __forceinline__ int einsat_quotient(int a, int b) { return a / b - (a % b < 0); }
static __device__ __forceinline__ int einsat_remainder(int a, int b) { return a % b < 0 ? a % b + b : a % b; }
#endif
extern "C" __global__ void __launch_bounds__(256, 2) mat_mul_relu_ae443e5b685856bf(const float* __restrict__ in0, const float* __restrict__ in1, float* __restrict__ out) {
  __shared__ float lefts[16][68];
  __shared__ float rights[16][68];
  const int row = (int)(blockIdx.x / 2u % 2u) * 64;
  const int column = (int)(blockIdx.x % 2u) * 64;
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  float sums[4][4] = {};
  for (int first = 0; first < 50; first += 16) {
    for (int place = threadIdx.x; place < 1024; place += 256) {
      const int k = place % 16, m = place / 16;
      float staged = 0.0f;
      if (row + m < 70 && first + k < 50) {
        const int across = row + m, term = first + k;
        const int i1 = across;
        const int k3 = term;
        const float v_1 = in0[i1 * 50 + k3];
        staged = v_1;
      }
      lefts[k][m] = staged;
    }
    for (int place = threadIdx.x; place < 1024; place += 256) {
      const int k = place / 64, m = place % 64;
      float staged = 0.0f;
      if (column + m < 67 && first + k < 50) {
        const int across = column + m, term = first + k;
        const int i2 = across;
        const int k3 = term;
        const float v_2 = in1[i2 + k3 * 67];
        staged = v_2;
      }
      rights[k][m] = staged;
    }
    __syncthreads();
    for (int k = 0; k < 16; ++k) {
      float left[4], right[4];
      for (int i = 0; i < 4; ++i) left[i] = lefts[k][y + i * 16];
      for (int i = 0; i < 4; ++i) right[i] = rights[k][x + i * 16];
      for (int i = 0; i < 4; ++i) for (int j = 0; j < 4; ++j) sums[i][j] += left[i] * right[j];
    }
    __syncthreads();
  }
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int m = row + y + i * 16, n = column + x + j * 16;
      if (m < 70 && n < 67) {
        const int i1 = m;
        const int i2 = n;
        const float v_3 = einsat_max(sums[i][j], 0.0f);
        out[i1 * 67 + i2] = v_3;
      }
    }
  }
}
