// grid (5, 1, 1), block (256, 1, 1)
#ifndef EINSAT_FUNCTIONS
#define EINSAT_FUNCTIONS
static __device__ __forceinline__ float einsat_max(float a, float b) { return a > b || a != a ? a : b; }
static __device__ __forceinline__ float einsat_min(float a, float b) { return a < b || a != a ? a : b; }
static __device__ __forceinline__ float einsat_sign(float a) { return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : a; }
static __device__ __forceinline__ int einsat_quotient(int a, int b) { return a / b - (a % b < 0); }
static __device__ __forceinline__ int einsat_remainder(int a, int b) { return a % b < 0 ? a % b + b : a % b; }
#endif
extern "C" __global__ void __launch_bounds__(256) softmax_73b280fde81e1a4a(const float* __restrict__ in0, float* __restrict__ out) {
  const unsigned row = blockIdx.x;
  const int i1 = row;
  const int rank = threadIdx.x;
  float total_1 = __int_as_float(0xff800000);
  #pragma unroll
  for (int turn_3 = 0; turn_3 < 5; ++turn_3) {
    const int term_2 = rank + turn_3 * 256;
    if (turn_3 < 4 || term_2 < 1100) {
      const int k3 = term_2;
      const float v_4 = in0[i1 * 1100 + k3];
      total_1 = einsat_max(total_1, v_4);
    }
  }
  for (int step = 16; step > 0; step /= 2) {
    total_1 = einsat_max(total_1, __shfl_xor_sync(0xffffffffu, total_1, step));
  }
  __shared__ float parts_5[8];
  if (threadIdx.x % 32 == 0) parts_5[threadIdx.x / 32] = total_1;
  __syncthreads();
  total_1 = parts_5[0];
  for (int part = 1; part < 8; ++part) {
    total_1 = einsat_max(total_1, parts_5[part]);
  }
  float sum_6 = 0.0f;
  #pragma unroll
  for (int turn_8 = 0; turn_8 < 5; ++turn_8) {
    const int term_7 = rank + turn_8 * 256;
    if (turn_8 < 4 || term_7 < 1100) {
      const int k4 = term_7;
      const float v_9 = in0[i1 * 1100 + k4];
      const float v_10 = (v_9 - total_1);
      const float v_11 = expf(v_10);
      sum_6 = (sum_6 + v_11);
    }
  }
  for (int step = 16; step > 0; step /= 2) {
    sum_6 = (sum_6 + __shfl_xor_sync(0xffffffffu, sum_6, step));
  }
  __shared__ float parts_12[8];
  if (threadIdx.x % 32 == 0) parts_12[threadIdx.x / 32] = sum_6;
  __syncthreads();
  sum_6 = parts_12[0];
  for (int part = 1; part < 8; ++part) {
    sum_6 = (sum_6 + parts_12[part]);
  }
  {
    const float v_17 = (1.0f / sum_6);
    #pragma unroll
    for (int turn_13 = 0; turn_13 < 5; ++turn_13) {
      const int place = rank + turn_13 * 256;
      if (turn_13 < 4 || place < 1100) {
        const int i2 = place;
        const float v_14 = in0[i1 * 1100 + i2];
        const float v_15 = (v_14 - total_1);
        const float v_16 = expf(v_15);
        const float v_18 = (v_16 * v_17);
        out[i1 * 1100 + i2] = v_18;
      }
    }
  }
}
