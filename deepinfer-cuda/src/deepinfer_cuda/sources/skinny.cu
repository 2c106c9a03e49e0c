// y[M, N] = x[M, K] * w[N, K]^T for few rows M, bound by reading w once.
//
// A block of threads streams tiles of 16 rows of w through a ring in shared memory. Some warps fill it with
// bulk copies; asking for one takes a warp some 50 cycles, so one warp alone would be too slow. No kernel of
// a recorded step writes w, so the ring fills while the kernel before this one still runs (programmatic dependent
// launch); only x is waited for. Eight warps share out the columns of each piece of a tile, and their sums are
// added in order of warp: a row's bits do not depend on the other rows.
//
// With experts, there are as many matrices w, and lists of up to eight slots that are multiplied with one
// of them. A slot is a pair of a token and one of its experts.
//
// Set by the compiler:
//   PIECE    columns at a time, a multiple of 256; for codes 512, 1024 or 2048, of which a row has at most 32,
//            32 and 16
//   STAGES   pieces in the ring
//   FILLERS  warps that fill it
//   HELD     pieces of x that stay in registers, that is all; 0: x is read anew for each tile
//   GATED    w has gates, then as many ups, and y = silu(gate) * up
//   CODED    w is e4m3, with a float32 scale for each 128 rows and 128 columns
//   EXPERTS  0: none. 1: x has a row per token. 2: x has a row per slot, and the lists were settled before
//            the kernel before this one let this one start
//   IS_HALF  x, plain w and y are float16, else bfloat16

typedef unsigned short half_t;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int WARPS = 8, OUTPUTS = 16, ROWS = 8, BUFFERS = 4, KEPT = HELD ? HELD : 1;
constexpr int WIDTH = CODED ? 1 : 2, PIECE_BYTES = PIECE * WIDTH;
constexpr int ROW_BYTES = PIECE_BYTES + 64;  // 64 more: no bank conflicts
constexpr int STAGE_BYTES = OUTPUTS * ROW_BYTES, COLUMNS = PIECE / WARPS;
constexpr int SPAN = 64 / WIDTH, BLOCKS = COLUMNS / SPAN, QUARTER = SPAN / 4;  // columns that 4 lanes, and 1, take
constexpr int SCALED = COLUMNS < 128 ? 1 : COLUMNS / 128, UNITS = CODED ? BLOCKS / SCALED : BLOCKS;  // with one scale
constexpr int VECTORS = QUARTER / 8, SUMS = OUTPUTS * ROWS, PER_TILE = GATED ? OUTPUTS / 2 : OUTPUTS;

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

// Two of four codes, as numbers.
template <int HALF>
__device__ __forceinline__ u32 decode(u32 codes) {
    u32 result;
#if IS_HALF
    const unsigned short pair = HALF ? codes >> 16 : codes & 0xffff;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(result) : "h"(pair));
#else
    // The bits of e4m3 are those of a bfloat16 whose exponent is 120 too small, also where it is subnormal.
    const u32 spread = __byte_perm(codes, 0, HALF ? 0x3424 : 0x1404);
    const u32 small = (spread & 0x80008000) | ((spread & 0x7f007f00) >> 4);
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(small), "r"(0x7b807b80));
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

__device__ __forceinline__ void wait_for_inputs() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ void let_next_start() { asm volatile("griddepcontrol.launch_dependents;"); }

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
skinny(const half_t* x, const unsigned char* w, const half_t* bias, half_t* y, const float* scales,
       const int* list_count, const int* list_experts, const int* list_slots, int num_rows, int num_outputs,
       int size, int top_k, long long x_stride, long long w_stride, long long y_stride, long long scales_stride,
       long long expert_stride, long long expert_scales_stride, float limit) {
    extern __shared__ __align__(128) unsigned char ring[];
    float* sums = reinterpret_cast<float*>(ring + STAGES * STAGE_BYTES);  // [BUFFERS][WARPS][SUMS]
    u64* barriers = reinterpret_cast<u64*>(sums + BUFFERS * WARPS * SUMS);
    const u32 full = shared_address(barriers), empty = full + STAGES * 8;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int num_tiles = (num_outputs + PER_TILE - 1) / PER_TILE, num_pieces = size / PIECE;
    if (threadIdx.x == 0)
        for (int stage = 0; stage < STAGES; stage++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full + stage * 8));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(empty + stage * 8), "r"(WARPS));
        }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
    if (EXPERTS == 1) wait_for_inputs();
    let_next_start();
    // Neighbouring tiles, so that they share x.
    const int num_jobs = (EXPERTS ? *list_count : 1) * num_tiles;
    const int first_job = (long long)num_jobs * blockIdx.x / gridDim.x;
    const int last_job = (long long)num_jobs * (blockIdx.x + 1) / gridDim.x;
    if (warp >= WARPS) {  // fills the ring, a lane per row
        if (lane >= OUTPUTS) return;
        const int num_turns = (last_job - first_job) * num_pieces;
        for (int turn = warp - WARPS; turn < num_turns; turn += FILLERS) {
            const int job = first_job + turn / num_pieces, piece = turn % num_pieces, stage = turn % STAGES;
            const int row = job % num_tiles * PER_TILE + (GATED ? lane % ROWS : lane);
            const unsigned char* matrix = EXPERTS ? w + list_experts[job / num_tiles] * expert_stride : w;
            const unsigned char* source = matrix + (min(row, num_outputs - 1) + (GATED && lane >= ROWS ? num_outputs : 0)) * w_stride;
            if (turn >= STAGES) wait_for(empty + stage * 8, (turn / STAGES - 1) & 1);
            if (lane == 0)
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full + stage * 8),
                             "r"(OUTPUTS * PIECE_BYTES) : "memory");
            __syncwarp((1u << OUTPUTS) - 1);
            const u32 target = shared_address(ring) + stage * STAGE_BYTES + lane * ROW_BYTES;
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
                    "r"(target), "l"(source + piece * PIECE_BYTES), "r"(PIECE_BYTES), "r"(full + stage * 8) : "memory");
        }
        return;
    }
    if (EXPERTS != 1) wait_for_inputs();
    const int group = lane / 4, quad = lane % 4;
    // LAYOUT: the four lanes of a group hold neighbouring columns of a block, which serve several products.
    uint4 rows[KEPT][BLOCKS][VECTORS];
    const half_t* own_row = group < num_rows ? x + group * x_stride : nullptr;
    const auto load = [&](uint4 (&target)[BLOCKS][VECTORS], int piece) {
#pragma unroll
        for (int block = 0; block < BLOCKS; block++)
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                const int column = piece * PIECE + warp * COLUMNS + block * SPAN + quad * QUARTER + i * 8;
                target[block][i] = own_row ? *reinterpret_cast<const uint4*>(own_row + column) : make_uint4(0, 0, 0, 0);
            }
    };
    // LAYOUT: each lane holds one of the scales that its warp needs for a tile, by piece.
    float2 next_scales;
    const auto load_scales = [&](int job) {
        const int index = min(lane, num_pieces * SCALED - 1), first_output = job % num_tiles * PER_TILE;
        const int column = index / SCALED * PIECE + warp * COLUMNS + index % SCALED * 128;
        const float* own = scales + column / 128 + (EXPERTS ? list_experts[job / num_tiles] * expert_scales_stride : 0);
        next_scales.x = own[first_output / 128 * scales_stride];
        next_scales.y = GATED ? own[(first_output + num_outputs) / 128 * scales_stride] : next_scales.x;
    };
    if (CODED && first_job < last_job) load_scales(first_job);
    int list = -1, turn = 0;
    for (int job = first_job; job < last_job; job++) {
        __syncwarp();  // products want the whole warp
        const int first_output = job % num_tiles * PER_TILE;
        if (job / num_tiles != list) {
            list = job / num_tiles;
            if (EXPERTS) {
                const int slot = list_slots[list * ROWS + group];
                own_row = slot < num_rows ? x + (EXPERTS == 1 ? slot / top_k : slot) * x_stride : nullptr;
            }
#pragma unroll
            for (int piece = 0; piece < KEPT; piece++) load(rows[piece], piece);
        }
        const float2 own_scales = next_scales;
        if (CODED && job + 1 < last_job) load_scales(job + 1);
        float sum[2][4] = {};
#pragma unroll KEPT
        for (int piece = 0; piece < (HELD ? HELD : num_pieces); piece++, turn++) {
            uint4 b[BLOCKS][VECTORS];
#pragma unroll
            for (int block = 0; block < BLOCKS; block++)
#pragma unroll
                for (int i = 0; i < VECTORS; i++) b[block][i] = rows[HELD ? piece : 0][block][i];
            if (!HELD) load(rows[0], piece + 1 < num_pieces ? piece + 1 : 0);
            const int stage = turn % STAGES;
            wait_for(full + stage * 8, (turn / STAGES) & 1);
            const unsigned char* place = ring + stage * STAGE_BYTES + group * ROW_BYTES + warp * COLUMNS * WIDTH + quad * 16;
#pragma unroll
            for (int first = 0; first < BLOCKS; first += UNITS) {
                float part[2][4] = {};
                float(&into)[2][4] = CODED ? part : sum;
#pragma unroll
                for (int block = first; block < first + UNITS; block++) {
                    const uint4 low = *reinterpret_cast<const uint4*>(place + block * 64);
                    const uint4 high = *reinterpret_cast<const uint4*>(place + block * 64 + 8 * ROW_BYTES);
#if CODED
                    const uint4 v0 = b[block][0], v1 = b[block][1];
                    multiply(into[0], decode<0>(low.x), decode<0>(high.x), decode<1>(low.x), decode<1>(high.x), v0.x, v0.y);
                    multiply(into[1], decode<0>(low.y), decode<0>(high.y), decode<1>(low.y), decode<1>(high.y), v0.z, v0.w);
                    multiply(into[0], decode<0>(low.z), decode<0>(high.z), decode<1>(low.z), decode<1>(high.z), v1.x, v1.y);
                    multiply(into[1], decode<0>(low.w), decode<0>(high.w), decode<1>(low.w), decode<1>(high.w), v1.z, v1.w);
#else
                    const uint4 v = b[block][0];
                    multiply(into[0], low.x, high.x, low.y, high.y, v.x, v.y);
                    multiply(into[1], low.z, high.z, low.w, high.w, v.z, v.w);
#endif
                }
                if (CODED) {
                    const int index = piece * SCALED + first / UNITS;
                    const float low_scale = __shfl_sync(~0u, own_scales.x, index);
                    const float high_scale = GATED ? __shfl_sync(~0u, own_scales.y, index) : low_scale;
#pragma unroll
                    for (int i = 0; i < 4; i++) sum[0][i] += (part[0][i] + part[1][i]) * (i < 2 ? low_scale : high_scale);
                }
            }
            // Else copies overtake reads of what they overwrite, which was seen.
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncwarp();
            if (lane == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(empty + stage * 8) : "memory");
        }
        float* buffer = sums + (job & (BUFFERS - 1)) * WARPS * SUMS;
#pragma unroll
        for (int i = 0; i < 4; i++)
            buffer[warp * SUMS + (quad * 2 + i % 2) * OUTPUTS + group + i / 2 * 8] = sum[0][i] + sum[1][i];
        // Half of the warps add, in turns, and the others go on. They come back to this buffer four tiles later,
        // and on the way wait for each other at least once.
        if (warp / (WARPS / 2) != (job & 1)) {
            asm volatile("bar.arrive %0, %1;" ::"r"(1 + (job & 1)), "r"(WARPS * 32) : "memory");
            continue;
        }
        asm volatile("bar.sync %0, %1;" ::"r"(1 + (job & 1)), "r"(WARPS * 32) : "memory");
        const int place = threadIdx.x % (WARPS * 16), row = place / PER_TILE, output = first_output + place % PER_TILE;
        if (row >= ROWS || output >= num_outputs) continue;
        const int target = EXPERTS ? list_slots[list * ROWS + row] : row;
        if (target >= num_rows) continue;
        const float* from = buffer + row * OUTPUTS + place % PER_TILE;
        float total = 0, up = 0;
        for (int i = 0; i < WARPS; i++) {
            total += from[i * SUMS];
            if (GATED) up += from[i * SUMS + 8];
        }
        if (bias) total += widen(bias[output]);
        if (GATED) {
            if (bias) up += widen(bias[num_outputs + output]);
            total = fminf(widen(narrow(total)), limit);
            up = fmaxf(fminf(widen(narrow(up)), limit), -limit);
            total = widen(narrow(total / (1.0f + __expf(-total)))) * up;
        }
        y[target * y_stride + output] = narrow(total);
    }
}
