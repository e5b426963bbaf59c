// grid (5, 1, 1), block (128, 1, 1)
#ifndef EINSAT_FUNCTIONS
#define EINSAT_FUNCTIONS
static __device__ __forceinline__ float einsat_max(float a, float b) { return a > b || a != a ? a : b; }
static __device__ __forceinline__ float einsat_min(float a, float b) { return a < b || a != a ? a : b; }
static __device__ __forceinline__ float einsat_sign(float a) { return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : a; }
static __device__ __forceinline__ int einsat_quotient(int a, int b) { return a / b - (a % b < 0); }
static __device__ __forceinline__ int einsat_remainder(int a, int b) { return a % b < 0 ? a % b + b : a % b; }
#endif
extern "C" __global__ void __launch_bounds__(128) softmax_73b280fde81e1a4a(const float* __restrict__ in0, float* __restrict__ out) {
  const unsigned row = blockIdx.x;
  const int i1 = row;
  const int rank = threadIdx.x;
  float total_1 = __int_as_float(0xff800000);
  for (int term_2 = rank; term_2 < 1100; term_2 += 128) {
    const int k3 = term_2;
    const float v_3 = in0[i1 * 1100 + k3];
    total_1 = einsat_max(total_1, v_3);
  }
  for (int step = 16; step > 0; step /= 2) {
    total_1 = einsat_max(total_1, __shfl_xor_sync(0xffffffffu, total_1, step));
  }
  __shared__ float parts_4[4];
  if (threadIdx.x % 32 == 0) parts_4[threadIdx.x / 32] = total_1;
  __syncthreads();
  total_1 = parts_4[0];
  for (int part = 1; part < 4; ++part) {
    total_1 = einsat_max(total_1, parts_4[part]);
  }
  float sum_5 = 0.0f;
  for (int term_6 = rank; term_6 < 1100; term_6 += 128) {
    const int k4 = term_6;
    const float v_7 = in0[i1 * 1100 + k4];
    const float v_8 = (v_7 - total_1);
    const float v_9 = expf(v_8);
    sum_5 = (sum_5 + v_9);
  }
  for (int step = 16; step > 0; step /= 2) {
    sum_5 = (sum_5 + __shfl_xor_sync(0xffffffffu, sum_5, step));
  }
  __shared__ float parts_10[4];
  if (threadIdx.x % 32 == 0) parts_10[threadIdx.x / 32] = sum_5;
  __syncthreads();
  sum_5 = parts_10[0];
  for (int part = 1; part < 4; ++part) {
    sum_5 = (sum_5 + parts_10[part]);
  }
  {
    const float v_14 = (1.0f / sum_5);
    for (int place = rank; place < 1100; place += 128) {
      const int i2 = place;
      const float v_11 = in0[i1 * 1100 + i2];
      const float v_12 = (v_11 - total_1);
      const float v_13 = expf(v_12);
      const float v_15 = (v_13 * v_14);
      out[i1 * 1100 + i2] = v_15;
    }
  }
}
