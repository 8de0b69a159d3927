// The kernels of GpuOps. The compiler's options set REAL, float or double, and WIDE: 1 makes every
// count and size a long long, for arrays too large for int.
//
// A window slides over three axes; the caller fills up missing ones with size 1 in front. Every
// kernel walks its elements in a grid-stride loop, so any grid computes the whole.

typedef REAL real;
#if WIDE
typedef long long whole;
#else
typedef int whole;
#endif

#define EACH(i, count)                                                             \
    for (whole i = (whole)blockIdx.x * (whole)blockDim.x + (whole)threadIdx.x;     \
         i < count; i += (whole)gridDim.x * (whole)blockDim.x)

#define THREE(name) whole name##0, whole name##1, whole name##2
#define WINDOW THREE(size), THREE(kernel), THREE(stride), THREE(pad), THREE(dilation), THREE(at)

__device__ static inline whole least(whole a, whole b) { return a < b ? a : b; }
__device__ static inline whole most(whole a, whole b) { return a > b ? a : b; }

// x (N, C, size) -> col: what each window holds, zeros outside. A window's column lies at
// image * image_step + (channel, tap) * tap_step + position, so images may stand one behind the
// other or side by side. One thread a (channel, image, position); it writes all taps.
extern "C" __global__ void im2col(
    whole count, const real *x, real *col, whole images, whole channels, WINDOW,
    whole image_step, whole tap_step)
{
    const whole places = at0 * at1 * at2;
    EACH(i, count) {
        const whole p = i % places, n = i / places % images, c = i / places / images;
        const whole start0 = p / (at1 * at2) * stride0 - pad0;
        const whole start1 = p / at2 % at1 * stride1 - pad1;
        const whole start2 = p % at2 * stride2 - pad2;
        const real *plane = x + (n * channels + c) * size0 * size1 * size2;
        real *to = col + n * image_step + c * kernel0 * kernel1 * kernel2 * tap_step + p;
        for (whole t0 = 0; t0 < kernel0; ++t0) {
            const whole s0 = start0 + t0 * dilation0;
            for (whole t1 = 0; t1 < kernel1; ++t1) {
                const whole s1 = start1 + t1 * dilation1;
                const bool inside = s0 >= 0 && s0 < size0 && s1 >= 0 && s1 < size1;
                for (whole t2 = 0; t2 < kernel2; ++t2) {
                    const whole s2 = start2 + t2 * dilation2;
                    *to = inside && s2 >= 0 && s2 < size2
                        ? plane[(s0 * size1 + s1) * size2 + s2] : (real)0;
                    to += tap_step;
                }
            }
        }
    }
}

// The tap t of which window lies at y, counted from the edge of the pad? -1: of none.
__device__ static inline whole window_of(whole y, whole t, whole dilation, whole stride, whole at)
{
    const whole start = y - t * dilation;
    if (start < 0 || start % stride != 0 || start / stride >= at)
        return -1;
    return start / stride;
}

// col (steps as above) -> out (N, C, size): each position gathers its value from every window, in
// the order of the taps, so the sum is the same in every run.
extern "C" __global__ void col2im(
    whole count, const real *col, real *out, whole channels, WINDOW, whole image_step,
    whole tap_step)
{
    EACH(i, count) {
        const whole y2 = i % size2 + pad2, y1 = i / size2 % size1 + pad1;
        const whole plane = i / size2 / size1 / size0;
        const whole y0 = i / size2 / size1 % size0 + pad0;
        const whole n = plane / channels, c = plane % channels;
        const real *from = col + n * image_step + c * kernel0 * kernel1 * kernel2 * tap_step;
        real sum = 0;
        for (whole t0 = 0; t0 < kernel0; ++t0) {
            const whole q0 = window_of(y0, t0, dilation0, stride0, at0);
            if (q0 < 0)
                continue;
            for (whole t1 = 0; t1 < kernel1; ++t1) {
                const whole q1 = window_of(y1, t1, dilation1, stride1, at1);
                if (q1 < 0)
                    continue;
                for (whole t2 = 0; t2 < kernel2; ++t2) {
                    const whole q2 = window_of(y2, t2, dilation2, stride2, at2);
                    if (q2 >= 0)
                        sum += from[((t0 * kernel1 + t1) * kernel2 + t2) * tap_step
                                    + (q0 * at1 + q1) * at2 + q2];
                }
            }
        }
        out[i] = sum;
    }
}

// x (columns, rows, places) -> out (rows, columns, places), plus bias (columns) unless it is NULL.
extern "C" __global__ void swap(
    whole count, const real *x, const real *bias, real *out, whole rows, whole columns,
    whole places)
{
    EACH(i, count) {
        const whole c = i / places % columns, r = i / places / columns;
        const real value = x[(c * rows + r) * places + i % places];
        out[i] = bias ? value + bias[c] : value;
    }
}

// y (images, channels, places) += bias (channels).
extern "C" __global__ void bias(
    whole count, real *y, const real *b, whole channels, whole places)
{
    EACH(i, count)
        y[i] += b[i / places % channels];
}

// x (planes, size) -> out, mask (planes, at). Caffe's rule: the running maximum starts at the
// lowest finite number and only a greater value replaces it. mask may be NULL.
extern "C" __global__ void pool_max(
    whole count, const real *x, real *out, int *mask, WINDOW)
{
    const real lowest = sizeof(real) == 4 ? (real)-3.4028234663852886e38
                                          : (real)-1.7976931348623157e308;
    EACH(i, count) {
        const whole q = i / at2;
        const whole start0 = q / at1 % at0 * stride0 - pad0;
        const whole start1 = q % at1 * stride1 - pad1;
        const whole start2 = i % at2 * stride2 - pad2;
        const real *plane = x + q / at1 / at0 * size0 * size1 * size2;
        real best = lowest;
        whole winner = -1;
        for (whole s0 = most(start0, 0); s0 < least(start0 + kernel0, size0); ++s0)
            for (whole s1 = most(start1, 0); s1 < least(start1 + kernel1, size1); ++s1)
                for (whole s2 = most(start2, 0); s2 < least(start2 + kernel2, size2); ++s2) {
                    const whole at = (s0 * size1 + s1) * size2 + s2;
                    if (plane[at] > best) {
                        best = plane[at];
                        winner = at;
                    }
                }
        out[i] = best;
        if (mask)
            mask[i] = (int)winner;
    }
}

// Positions of a window inside the image and its pad, at least 1: Caffe's divisor, one axis.
__device__ static inline whole span(whole start, whole kernel, whole size, whole pad)
{
    return most(least(start + kernel, size + pad) - start, 1);
}

// x (planes, size) -> out (planes, at): the sum over Caffe's divisor.
extern "C" __global__ void pool_ave(whole count, const real *x, real *out, WINDOW)
{
    EACH(i, count) {
        const whole q = i / at2;
        const whole start0 = q / at1 % at0 * stride0 - pad0;
        const whole start1 = q % at1 * stride1 - pad1;
        const whole start2 = i % at2 * stride2 - pad2;
        const real *plane = x + q / at1 / at0 * size0 * size1 * size2;
        real sum = 0;
        for (whole s0 = most(start0, 0); s0 < least(start0 + kernel0, size0); ++s0)
            for (whole s1 = most(start1, 0); s1 < least(start1 + kernel1, size1); ++s1)
                for (whole s2 = most(start2, 0); s2 < least(start2 + kernel2, size2); ++s2)
                    sum += plane[(s0 * size1 + s1) * size2 + s2];
        const whole divisor = span(start0, kernel0, size0, pad0)
            * span(start1, kernel1, size1, pad1) * span(start2, kernel2, size2, pad2);
        out[i] = sum / (real)divisor;
    }
}

// The first window that covers y, counted from the edge of the pad.
__device__ static inline whole first_window(whole y, whole kernel, whole stride)
{
    return y < kernel ? 0 : (y - kernel) / stride + 1;
}

// dy (planes, at) -> out (planes, size): each position gathers dy / divisor of its windows.
extern "C" __global__ void pool_ave_backward(whole count, const real *dy, real *out, WINDOW)
{
    EACH(i, count) {
        const whole y2 = i % size2 + pad2, y1 = i / size2 % size1 + pad1;
        const whole y0 = i / size2 / size1 % size0 + pad0;
        const real *from = dy + i / size2 / size1 / size0 * at0 * at1 * at2;
        const whole last0 = least(y0 / stride0, at0 - 1), last1 = least(y1 / stride1, at1 - 1);
        const whole last2 = least(y2 / stride2, at2 - 1);
        real sum = 0;
        for (whole q0 = first_window(y0, kernel0, stride0); q0 <= last0; ++q0) {
            const whole d0 = span(q0 * stride0 - pad0, kernel0, size0, pad0);
            for (whole q1 = first_window(y1, kernel1, stride1); q1 <= last1; ++q1) {
                const whole d1 = d0 * span(q1 * stride1 - pad1, kernel1, size1, pad1);
                for (whole q2 = first_window(y2, kernel2, stride2); q2 <= last2; ++q2)
                    sum += from[(q0 * at1 + q1) * at2 + q2]
                        / (real)(d1 * span(q2 * stride2 - pad2, kernel2, size2, pad2));
            }
        }
        out[i] = sum;
    }
}

// dy, mask (planes, at) -> out (planes, size): each position gathers dy of the windows it won.
extern "C" __global__ void pool_max_backward(
    whole count, const real *dy, const int *mask, real *out, WINDOW)
{
    EACH(i, count) {
        const whole y2 = i % size2 + pad2, y1 = i / size2 % size1 + pad1;
        const whole plane = i / size2 / size1, y0 = plane % size0 + pad0;
        const whole own = i - plane / size0 * size0 * size1 * size2;
        const whole from = plane / size0 * at0 * at1 * at2;
        const whole last0 = least(y0 / stride0, at0 - 1), last1 = least(y1 / stride1, at1 - 1);
        const whole last2 = least(y2 / stride2, at2 - 1);
        real sum = 0;
        for (whole q0 = first_window(y0, kernel0, stride0); q0 <= last0; ++q0)
            for (whole q1 = first_window(y1, kernel1, stride1); q1 <= last1; ++q1)
                for (whole q2 = first_window(y2, kernel2, stride2); q2 <= last2; ++q2) {
                    const whole q = from + (q0 * at1 + q1) * at2 + q2;
                    if (mask[q] == own)
                        sum += dy[q];
                }
        out[i] = sum;
    }
}
