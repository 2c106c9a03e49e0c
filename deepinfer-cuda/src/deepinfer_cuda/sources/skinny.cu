// y[M, N] = x[M, K] * w[N, K]^T for few rows M, bound by reading w once.
//
// A block of threads streams tiles of 16 rows of w through a ring in shared memory. Some warps fill it with
// bulk copies; asking for one takes a warp some 50 cycles, so one warp alone would be too slow. No kernel
// writes w, so the ring fills while the kernel before this one still runs (programmatic dependent launch);
// only x is waited for. Eight warps share out the columns of each piece of a tile, and their sums are added
// in order of warp: a row's bits do not depend on the other rows.
//
// Set by the compiler:
//   PIECE    columns at a time, a multiple of 256
//   STAGES   pieces in the ring
//   FILLERS  warps that fill it
//   GROUPS   of eight rows of x
//   HELD     pieces of x in registers: all that there are, or 1, the next one
//   GATED    w has gates, then as many ups, and y = silu(gate) * up
//   IS_HALF  numbers are float16, else bfloat16

typedef unsigned short half_t;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int WARPS = 8, OUTPUTS = 16, ROW_BYTES = PIECE * 2 + 64;  // 64 more: no bank conflicts
constexpr int STAGE_BYTES = OUTPUTS * ROW_BYTES, COLUMNS = PIECE / WARPS, BLOCKS = COLUMNS / 32;
constexpr int SUMS = OUTPUTS * 8 * GROUPS, KEPT = HELD;

__device__ __forceinline__ float widen(half_t value) {
#if IS_HALF
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value));
    return wide;
#else
    return __uint_as_float(u32(value) << 16);
#endif
}

__device__ __forceinline__ half_t narrow(float value) {
    half_t result;
#if IS_HALF
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(value));
#else
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(value));
#endif
    return result;
}

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void wait_for(u32 barrier, u32 phase) {
    asm volatile(
        "{ .reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again; }" ::"r"(barrier), "r"(phase) : "memory");
}

__device__ __forceinline__ void multiply(float (&sum)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if IS_HALF
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
#endif
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

extern "C" __global__ void __launch_bounds__((WARPS + FILLERS) * 32)
skinny(const half_t* x, const half_t* w, const half_t* bias, half_t* y, int num_rows, int num_outputs,
       int size, long long x_stride, long long w_stride, long long y_stride) {
    extern __shared__ __align__(128) unsigned char ring[];
    float* sums = reinterpret_cast<float*>(ring + STAGES * STAGE_BYTES);  // [2][WARPS][SUMS]
    u64* barriers = reinterpret_cast<u64*>(sums + 2 * WARPS * SUMS);
    const u32 full = shared_address(barriers), empty = full + STAGES * 8;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int per_tile = GATED ? OUTPUTS / 2 : OUTPUTS;
    const int num_tiles = (num_outputs + per_tile - 1) / per_tile, num_pieces = size / PIECE;
    if (threadIdx.x == 0)
        for (int stage = 0; stage < STAGES; stage++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full + stage * 8));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(empty + stage * 8), "r"(WARPS));
        }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
    asm volatile("griddepcontrol.launch_dependents;");
    const int num_turns = (num_tiles - int(blockIdx.x) + int(gridDim.x) - 1) / int(gridDim.x) * num_pieces;
    if (warp >= WARPS) {  // fills the ring, a lane per row
        if (lane >= OUTPUTS) return;
        for (int turn = warp - WARPS; turn < num_turns; turn += FILLERS) {
            const int tile = blockIdx.x + turn / num_pieces * gridDim.x, piece = turn % num_pieces, stage = turn % STAGES;
            int row = tile * per_tile + (GATED ? lane % 8 : lane);
            row = min(row, num_outputs - 1) + (GATED && lane >= 8 ? num_outputs : 0);
            if (turn >= STAGES) wait_for(empty + stage * 8, (turn / STAGES - 1) & 1);
            if (lane == 0)
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full + stage * 8),
                             "r"(OUTPUTS * PIECE * 2) : "memory");
            __syncwarp((1u << OUTPUTS) - 1);
            const u32 target = shared_address(ring) + stage * STAGE_BYTES + lane * ROW_BYTES;
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
                    "r"(target), "l"(w + row * w_stride + piece * PIECE), "r"(PIECE * 2), "r"(full + stage * 8) : "memory");
        }
        return;
    }
    asm volatile("griddepcontrol.wait;" ::: "memory");
    const int group = lane / 4, quad = lane % 4;
    // LAYOUT: lanes hold eight neighbours of a block of 32 columns, which serve two products.
    uint4 rows[KEPT][BLOCKS][GROUPS];
    const auto load = [&](uint4 (&target)[BLOCKS][GROUPS], int piece) {
#pragma unroll
        for (int block = 0; block < BLOCKS; block++)
#pragma unroll
            for (int part = 0; part < GROUPS; part++) {
                const int row = part * 8 + group, column = piece * PIECE + warp * COLUMNS + block * 32 + quad * 8;
                target[block][part] = make_uint4(0, 0, 0, 0);
                if (row < num_rows) target[block][part] = *reinterpret_cast<const uint4*>(x + row * x_stride + column);
            }
    };
#pragma unroll
    for (int piece = 0; piece < KEPT; piece++) load(rows[piece], piece);
    int turn = 0, count = 0;
    for (int tile = blockIdx.x; tile < num_tiles; tile += gridDim.x, count++) {
        float sum[2][GROUPS][4] = {};
#pragma unroll KEPT
        for (int piece = 0; piece < (KEPT > 1 ? KEPT : num_pieces); piece++, turn++) {
            uint4 b[BLOCKS][GROUPS];
#pragma unroll
            for (int block = 0; block < BLOCKS; block++)
#pragma unroll
                for (int part = 0; part < GROUPS; part++) b[block][part] = rows[KEPT > 1 ? piece : 0][block][part];
            if (KEPT == 1) load(rows[0], piece + 1 < num_pieces ? piece + 1 : 0);
            const int stage = turn % STAGES;
            wait_for(full + stage * 8, (turn / STAGES) & 1);
            const unsigned char* place = ring + stage * STAGE_BYTES + group * ROW_BYTES + (warp * COLUMNS + quad * 8) * 2;
#pragma unroll
            for (int block = 0; block < BLOCKS; block++) {
                const uint4 low = *reinterpret_cast<const uint4*>(place + block * 64);
                const uint4 high = *reinterpret_cast<const uint4*>(place + block * 64 + 8 * ROW_BYTES);
#pragma unroll
                for (int part = 0; part < GROUPS; part++) {
                    const uint4 v = b[block][part];
                    multiply(sum[0][part], low.x, high.x, low.y, high.y, v.x, v.y);
                    multiply(sum[1][part], low.z, high.z, low.w, high.w, v.z, v.w);
                }
            }
            __syncwarp();
            if (lane == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(empty + stage * 8) : "memory");
        }
        float* own = sums + ((count & 1) * WARPS + warp) * SUMS;
#pragma unroll
        for (int part = 0; part < GROUPS; part++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                own[(part * 8 + quad * 2 + i % 2) * OUTPUTS + group + i / 2 * 8] = sum[0][part][i] + sum[1][part][i];
        asm volatile("bar.sync 1, %0;" ::"r"(WARPS * 32) : "memory");
        const float* all = sums + (count & 1) * WARPS * SUMS;
        for (int place = threadIdx.x; place < GROUPS * 8 * per_tile; place += WARPS * 32) {
            const int row = place / per_tile, output = tile * per_tile + place % per_tile;
            if (row >= num_rows || output >= num_outputs) continue;
            const float* from = all + row * OUTPUTS + place % per_tile;
            float total = 0, up = 0;
            for (int i = 0; i < WARPS; i++) {
                total += from[i * SUMS];
                if (GATED) up += from[i * SUMS + 8];
            }
            if (bias) total += widen(bias[output]);
            if (GATED) {
                if (bias) up += widen(bias[num_outputs + output]);
                total = widen(narrow(total));
                total = widen(narrow(total / (1.0f + __expf(-total)))) * widen(narrow(up));
            }
            y[row * y_stride + output] = narrow(total);
        }
    }
}
