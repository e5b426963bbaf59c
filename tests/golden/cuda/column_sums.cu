// grid (3, 1, 1), block (32, 32, 1)
#ifndef EINSAT_FUNCTIONS
#define EINSAT_FUNCTIONS
static __device__ __forceinline__ float einsat_max(float a, float b) { return a > b || a != a ? a : b; }
static __device__ __forceinline__ float einsat_min(float a, float b) { return a < b || a != a ? a : b; }
static __device__ __forceinline__ float einsat_sign(float a) { return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : a; }
static __device__ __forceinline__ int einsat_quotient(int a, int b) { return a / b - (a % b < 0); }
static __device__ __forceinline__ int einsat_remainder(int a, int b) { return a % b < 0 ? a % b + b : a % b; }
#endif
extern "C" __global__ void __launch_bounds__(1024) reduce_sum_f5afc87825830862(const float* __restrict__ in0, float* __restrict__ out) {
  const unsigned own = blockIdx.x * 32u + threadIdx.x;
  const unsigned row = min(own, 69u);
  const int i1 = row;
  const int rank = threadIdx.y;
  float sum_1 = 0.0f;
  for (int term_2 = rank; term_2 < 600; term_2 += 32) {
    const int k2 = term_2;
    const float v_3 = in0[i1 + k2 * 70];
    sum_1 = (sum_1 + v_3);
  }
  __shared__ float parts_4[32][32];
  parts_4[threadIdx.y][threadIdx.x] = sum_1;
  __syncthreads();
  sum_1 = parts_4[0][threadIdx.x];
  for (int part = 1; part < 32; ++part) {
    sum_1 = (sum_1 + parts_4[part][threadIdx.x]);
  }
  if (own < 70u && rank == 0) {
    out[i1] = sum_1;
  }
}
