/* Include KERNEL, a file named from here, once for each set of vector instructions. */
#if defined(__x86_64__)
#define LANES 16
#define NAME(name) name##_avx512
#define TARGETED __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")))
#include KERNEL
#undef LANES
#undef NAME
#undef TARGETED
#define LANES 8
#define NAME(name) name##_avx2
#define TARGETED __attribute__((target("avx2,fma")))
#include KERNEL
#undef LANES
#undef NAME
#undef TARGETED
#endif
#define LANES 4
#define NAME(name) name##_plain
#define TARGETED
#include KERNEL
