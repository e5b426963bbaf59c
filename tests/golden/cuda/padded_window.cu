// grid (2, 1, 1), block (256, 1, 1)
#ifndef EINSAT_FUNCTIONS
#define EINSAT_FUNCTIONS
static __device__ __forceinline__ float einsat_max(float a, float b) { return a > b || a != a ? a : b; }
static __device__ __forceinline__ float einsat_min(float a, float b) { return a < b || a != a ? a : b; }
static __device__ __forceinline__ float einsat_sign(float a) { return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : a; }
static __device__ __forceinline__ int einsat_quotient(int a, int b) { return a / b - (a % b < 0); }
static __device__ __forceinline__ int einsat_remainder(int a, int b) { return a % b < 0 ? a % b + b : a % b; }
#endif
extern "C" __global__ void __launch_bounds__(256) max_pool_ad6263ccef43d516(const float* __restrict__ in0, float* __restrict__ out) {
  const unsigned flat = blockIdx.x * 256u + threadIdx.x;
  if (flat >= 320u) return;
  const int i3 = (int)(flat % 16u);
  const int i2 = (int)(flat / 16u % 5u);
  const int i1 = (int)(flat / 80u);
  const float v_2 = 0 <= -1 + i1 * 2 && 0 <= -1 + i2 * 2 ? in0[-160 + i1 * 288 + i2 * 32 + i3] : __int_as_float(0xff800000);
  const float v_4 = 0 <= -1 + i1 * 2 ? in0[-144 + i1 * 288 + i2 * 32 + i3] : __int_as_float(0xff800000);
  const float v_5 = einsat_max(v_2, v_4);
  const float v_7 = 0 <= -1 + i1 * 2 && 1 + i2 * 2 < 9 ? in0[-128 + i1 * 288 + i2 * 32 + i3] : __int_as_float(0xff800000);
  const float v_8 = einsat_max(v_5, v_7);
  const float v_10 = 0 <= -1 + i2 * 2 ? in0[-16 + i1 * 288 + i2 * 32 + i3] : __int_as_float(0xff800000);
  const float v_11 = einsat_max(v_8, v_10);
  const float v_12 = in0[i1 * 288 + i2 * 32 + i3];
  const float v_13 = einsat_max(v_11, v_12);
  const float v_15 = 1 + i2 * 2 < 9 ? in0[16 + i1 * 288 + i2 * 32 + i3] : __int_as_float(0xff800000);
  const float v_16 = einsat_max(v_13, v_15);
  const float v_18 = 0 <= -1 + i2 * 2 ? in0[128 + i1 * 288 + i2 * 32 + i3] : __int_as_float(0xff800000);
  const float v_19 = einsat_max(v_16, v_18);
  const float v_20 = in0[144 + i1 * 288 + i2 * 32 + i3];
  const float v_21 = einsat_max(v_19, v_20);
  const float v_23 = 1 + i2 * 2 < 9 ? in0[160 + i1 * 288 + i2 * 32 + i3] : __int_as_float(0xff800000);
  const float v_24 = einsat_max(v_21, v_23);
  out[i1 * 80 + i2 * 16 + i3] = v_24;
}
