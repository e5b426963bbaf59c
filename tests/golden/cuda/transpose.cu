// grid (4, 1, 1), block (32, 8, 1)
#ifndef EINSAT_FUNCTIONS
#define EINSAT_FUNCTIONS
static __device__ __forceinline__ float einsat_max(float a, float b) { return a > b || a != a ? a : b; }
static __device__ __forceinline__ float einsat_min(float a, float b) { return a < b || a != a ? a : b; }
static __device__ __forceinline__ float einsat_sign(float a) { return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : a; }
static __device__ __forceinline__ int einsat_quotient(int a, int b) { return a / b - (a % b < 0); }
static __device__ __forceinline__ int einsat_remainder(int a, int b) { return a % b < 0 ? a % b + b : a % b; }
#endif
extern "C" __global__ void __launch_bounds__(256) relu_transpose_1e255baef6423497(const float* __restrict__ in0, float* __restrict__ out) {
  __shared__ float square_1[32][33];
  const int row = (int)(blockIdx.x / 2u % 2u) * 32;
  const int column = (int)(blockIdx.x % 2u) * 32;
  for (int j = threadIdx.y; j < 32; j += 8) {
    const int i4 = row + (int)threadIdx.x;
    const int i3 = column + j;
    if (i4 < 35 && i3 < 40) {
      square_1[j][threadIdx.x] = in0[i3 * 35 + i4];
    }
  }
  __syncthreads();
  for (int j = threadIdx.y; j < 32; j += 8) {
    const int i4 = row + j;
    const int i3 = column + (int)threadIdx.x;
    if (i4 < 35 && i3 < 40) {
      const float v_2 = einsat_max(square_1[threadIdx.x][j], 0.0f);
      out[i3 + i4 * 40] = v_2;
    }
  }
}
