// Attention over the paged cache, read in place.
//
// A query's bits do not depend on what else is in the batch: keys are taken in tiles of 64
// positions counted from the start of its request and in spans of 512, each span is summed on its
// own and the spans are merged in order. Tiles and spans that a query cannot see add exact zeros,
// so it does not matter with which other queries it shares a pass, nor whether the spans of a long
// request were summed one after the other or by several threads.
#pragma once

#include "squares.h"

namespace deepinfer {
namespace {

constexpr int kTile = 64;
constexpr int kSpan = 512;
constexpr int kMaxRows = 48;  // queries times heads of a group that share loaded keys and values
constexpr int kTileVectors = kTile / W;
constexpr float kLowest = -3.4028234e38f;

constexpr int kBlockRows = 6;
constexpr int kBlockVectors = W == 16 ? 4 : 2;  // as many sums as registers can hold

// Some rows of one request for each of some heads of the cache, and the spans they attend to.
struct PagedItem {
    int32_t request, kv_head, num_heads, first_row, rows_per_head;
    int64_t first_span, end_span;
    int64_t partial;  // where a part of the result goes; -1: the item is whole
    int64_t num_rows() const { return int64_t(num_heads) * rows_per_head; }
};

// What a thread needs for one item. LAYOUT: rows padded to whole vectors, `dim` elements.
template <class T>
struct PagedWork {
    int64_t dim;
    float* q;          // [rows, dim], or pairs of bf16
    float* k;          // [dim, tile], or [dim / 2, tile] pairs
    float* v;          // [tile, dim]
    float* weights;    // [rows, tile]
    float* o;          // [rows, dim]
    float* merged_o;   // [rows, dim]
    float* sums;       // [rows, W]
    float *top, *merged_top, *merged_sum;  // [rows]
    const T* zeros;  // [dim], the key and value of positions that nobody sees
};

DI_INLINE int64_t padded(int64_t n) { return (n + W - 1) / W * W; }

inline size_t work_floats(int64_t dim) {
    return size_t(3 * kMaxRows * dim + (2 * kTile + 1) * dim + kMaxRows * (kTile + W + 3));
}

template <class T>
PagedWork<T> make_work(int64_t head_dim) {
    PagedWork<T> work;
    work.dim = padded(head_dim);
    float* at = static_cast<float*>(scratch(kWorkSlot, work_floats(work.dim) * sizeof(float)));
    const auto take = [&](int64_t count) { float* from = at; at += count; return from; };
    work.q = take(kMaxRows * work.dim);
    work.o = take(kMaxRows * work.dim);
    work.merged_o = take(kMaxRows * work.dim);
    work.k = take(kTile * work.dim);
    work.v = take(kTile * work.dim);
    work.weights = take(kMaxRows * kTile);
    work.sums = take(kMaxRows * W);
    work.top = take(kMaxRows);
    work.merged_top = take(kMaxRows);
    work.merged_sum = take(kMaxRows);
    work.zeros = reinterpret_cast<const T*>(std::memset(take(work.dim), 0, size_t(work.dim) * 4));
    return work;
}

// c[rows, 0 : vectors * W] (+)= a[rows, 0 : depth] b[depth, ...]: the sums stay in registers.
template <int rows, int vectors, bool is_paired, bool is_added>
DI_INLINE void multiply_block(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                              int64_t depth, float* c, int64_t c_stride) {
    VF sums[rows][vectors];
    for (int r = 0; r < rows; ++r)
        for (int v = 0; v < vectors; ++v)
            sums[r][v] = is_added ? load_raw<VF>(c + r * c_stride + v * W) : VF{};
    for (int64_t i = 0; i < depth; ++i) {
        VF columns[vectors];
        for (int v = 0; v < vectors; ++v) columns[v] = load_raw<VF>(b + i * b_stride + v * W);
        for (int r = 0; r < rows; ++r) {
            const VF factor = splat(a[r * a_stride + i]);
            for (int v = 0; v < vectors; ++v)
                sums[r][v] = multiply_add<is_paired>(factor, columns[v], sums[r][v]);
        }
    }
    for (int r = 0; r < rows; ++r)
        for (int v = 0; v < vectors; ++v) store_raw(c + r * c_stride + v * W, sums[r][v]);
}

template <int vectors, bool is_paired, bool is_added>
void multiply_rows(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                   int64_t depth, float* c, int64_t c_stride, int64_t num_rows) {
    int64_t r = 0;
#define DI_BLOCK(rows)                                                                       \
    multiply_block<rows, vectors, is_paired, is_added>(a + r * a_stride, a_stride, b, b_stride, \
                                                       depth, c + r * c_stride, c_stride)
    for (; r + kBlockRows <= num_rows; r += kBlockRows) DI_BLOCK(kBlockRows);
    switch (num_rows - r) {
        case 5: DI_BLOCK(5); break;
        case 4: DI_BLOCK(4); break;
        case 3: DI_BLOCK(3); break;
        case 2: DI_BLOCK(2); break;
        case 1: DI_BLOCK(1); break;
        default: break;
    }
#undef DI_BLOCK
}

template <bool is_paired, bool is_added>
void multiply(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t depth,
              float* c, int64_t c_stride, int64_t num_rows, int64_t num_columns) {
    constexpr int64_t step = kBlockVectors * W;
    int64_t i = 0;
    for (; i + step <= num_columns; i += step)
        multiply_rows<kBlockVectors, is_paired, is_added>(a, a_stride, b + i, b_stride, depth,
                                                          c + i, c_stride, num_rows);
    for (; i < num_columns; i += W)
        multiply_rows<1, is_paired, is_added>(a, a_stride, b + i, b_stride, depth, c + i, c_stride,
                                              num_rows);
}

// Asks memory for lines of what comes next, a few at a time: many at once would make the loads
// that are needed now wait for them.
struct Fetcher {
    // A tile has as many blocks as positions at most, each on two sides.
    struct {
        const char *from, *end;
    } stretches[2 * kTile + 2];
    int count = 0, current = 0;

    void clear() { count = current = 0; }
    void add(const char* from, int64_t bytes) { stretches[count++] = {from, from + bytes}; }

    template <int lines>
    DI_INLINE void fetch() {
        for (int i = 0; i < lines && current < count; ++i) {
            auto& stretch = stretches[current];
            __builtin_prefetch(stretch.from);
            stretch.from += 64;
            if (stretch.from >= stretch.end) ++current;
        }
    }
};

template <class D>
struct PagedTask {
    typedef typename D::T T;
    static constexpr bool is_paired = Pairs<D>::is_native;

    const PagedArgs& args;
    const PagedItem& item;
    const PagedItem* ahead;  // what this thread will most likely do next, or null
    PagedWork<T> work;
    Fetcher fetcher;
    int64_t group, query_len, seq_len, first_token;

    PagedTask(const PagedArgs& args, const PagedItem& item, const PagedItem* ahead,
              const PagedWork<T>& work)
        : args(args), item(item), ahead(ahead), work(work) {
        group = args.num_q_heads / args.num_kv_heads;
        first_token = args.cu_seqlens_q[item.request];
        query_len = args.cu_seqlens_q[item.request + 1] - first_token;
        seq_len = args.seq_lens[item.request];
    }

    int64_t query_of(int64_t row) const {
        return (item.first_row + row % item.rows_per_head) / group;
    }
    int64_t head_of(int64_t row) const {
        return (item.kv_head + row / item.rows_per_head) * group +
               (item.first_row + row % item.rows_per_head) % group;
    }
    int64_t position_of(int64_t row) const { return seq_len - query_len + query_of(row); }
    int64_t first_seen(int64_t row) const {
        const int64_t first = position_of(row) - args.window + 1;
        return args.window && first > 0 ? first : 0;
    }

    // Numbers from one row of a cache or of the queries, zeros up to whole vectors.
    int64_t depth() const { return is_paired ? padded((args.head_dim + 1) / 2) : work.dim; }

    void load_queries() {
        for (int64_t row = 0; row < item.num_rows(); ++row) {
            const T* q = static_cast<const T*>(args.q) +
                         (first_token + query_of(row)) * args.q_stride +
                         head_of(row) * args.head_dim;
            float* to = work.q + row * work.dim;
            if (is_paired) {
                std::memset(to, 0, size_t(depth()) * sizeof(float));
                std::memcpy(to, q, size_t(args.head_dim) * sizeof(T));
            } else {
                each_vector(args.head_dim, [&](int64_t i, int64_t n) {
                    store_raw(to + i, load_part<D>(q + i, n));
                });
            }
        }
    }

    // W words of a key from word i on: floats, or pairs of bf16.
    DI_INLINE VF load_words(const T* key, int64_t i) const {
        if (is_paired) {
            const int64_t left = args.head_dim - 2 * i;
            if (left >= 2 * W) return load_raw<VF>(key + 2 * i);
            T words[2 * W] = {};
            if (left > 0) std::memcpy(words, key + 2 * i, size_t(left) * sizeof(T));
            return load_raw<VF>(words);
        }
        const int64_t left = args.head_dim - i;
        return load_part<D>(key + i, left < W ? left : W);
    }

    // Lists all heads of some positions, which lie side by side, for `fetcher`: read like that,
    // memory delivers long stretches, and heads done later find them in a cache.
    void list_stretches(Fetcher* fetcher, int64_t base, int64_t end) const {
        const int32_t* table = args.block_tables + item.request * args.table_stride;
        const int64_t row = args.num_kv_heads * args.head_dim * int64_t(sizeof(T));
        while (base < end) {
            const int64_t block = base / args.block_size, offset = base % args.block_size;
            const int64_t left = args.block_size - offset;
            const int64_t count = left < end - base ? left : end - base;
            const int64_t id = table[block];
            for (int side = 0; side < 2; ++side) {
                const T* start = side ? static_cast<const T*>(args.v_cache) + id * args.v_stride
                                      : static_cast<const T*>(args.k_cache) + id * args.k_stride;
                fetcher->add(reinterpret_cast<const char*>(start) + offset * row, count * row);
            }
            base += count;
        }
    }

    // Keys and values of positions base to base + count; those outside of [seen, end) are zeros.
    void load_tile(int64_t base, int64_t count, int64_t seen, int64_t kv_head) {
        const int32_t* table = args.block_tables + item.request * args.table_stride;
        const int64_t row = args.num_kv_heads * args.head_dim, head = kv_head * args.head_dim;
        const T *keys[kTile], *values[kTile];
        int64_t at = seen > base ? seen - base : 0;
        for (int64_t j = 0; j < kTile; ++j) keys[j] = values[j] = work.zeros;
        int64_t offset = (base + at) % args.block_size;
        for (int64_t block = (base + at) / args.block_size; at < count; ++block) {
            const T* k = static_cast<const T*>(args.k_cache) + table[block] * args.k_stride + head;
            const T* v = static_cast<const T*>(args.v_cache) + table[block] * args.v_stride + head;
            for (; offset < args.block_size && at < count; ++offset, ++at) {
                keys[at] = k + offset * row;
                values[at] = v + offset * row;
            }
            offset = 0;
        }
        for (int64_t i = 0; i < depth(); i += W)
            for (int64_t j = 0; j < count; j += W) {
                VF square[W];
                fetcher.fetch<16>();
#pragma GCC unroll 16
                for (int r = 0; r < W; ++r) square[r] = load_words(keys[j + r], i);
                transpose(square);
#pragma GCC unroll 16
                for (int r = 0; r < W; ++r) store_raw(work.k + (i + r) * kTile + j, square[r]);
            }
        for (int64_t j = 0; j < count; ++j) {
            float* to = work.v + j * work.dim;
            fetcher.fetch<2>();
            each_vector(args.head_dim, [&](int64_t i, int64_t n) {
                store_raw(to + i, load_part<D>(values[j] + i, n));
            });
        }
    }

    // Scores of one row become weights; what was summed before is brought to the new maximum.
    void weigh(int64_t row, int64_t base) {
        float* scores = work.weights + row * kTile;
        const VI from = lanes() * 0 + int32_t(first_seen(row) > base ? first_seen(row) - base : 0);
        const int64_t last = position_of(row) - base;  // negative: sees nothing of the tile
        const VI to = lanes() * 0 + int32_t(last < kTile ? last : kTile);
        VF tile[kTileVectors], highest = splat(-INFINITY);
        for (int v = 0; v < kTileVectors; ++v) {
            VF s = load_raw<VF>(scores + v * W) * splat(args.scale);
            if (args.softcap > 0.0f) {
                // tanh x = 1 - 2 / (e^2x + 1)
                const VF doubled = exponential(s * splat(2.0f / args.softcap));
                s = splat(args.softcap) * (splat(1.0f) - splat(2.0f) / (doubled + splat(1.0f)));
            }
            const VI lane = lanes() + v * W;
            tile[v] = select((lane >= from) & (lane <= to), s, splat(-INFINITY));
            highest = max(highest, tile[v]);
        }
        const float old_top = work.top[row], tile_top = max_lanes(highest);
        const float top = old_top > tile_top ? old_top : tile_top;
        work.top[row] = top;
        // Before a row sees its first key both are -inf; the floor keeps their difference from
        // being nan.
        const VF floor = splat(top > kLowest ? top : kLowest);
        const VF decay = exponential(splat(old_top) - floor);
        VF sum = load_raw<VF>(work.sums + row * W) * decay;
        for (int v = 0; v < kTileVectors; ++v) {
            const VF weight = exponential(tile[v] - floor);
            store_raw(scores + v * W, weight);
            sum = sum + weight;
        }
        store_raw(work.sums + row * W, sum);
        if (top != old_top)
            for (int64_t i = 0; i < work.dim; i += W) {
                float* o = work.o + row * work.dim + i;
                store_raw(o, load_raw<VF>(o) * decay);
            }
    }

    // Sums one span; the result is in `o`, `top` and `sums`.
    void attend(int64_t first, int64_t end, int64_t seen) {
        for (int64_t row = 0; row < item.num_rows(); ++row) {
            work.top[row] = -INFINITY;
            store_raw(work.sums + row * W, VF{});
        }
        std::memset(work.o, 0, size_t(item.num_rows() * work.dim) * sizeof(float));
        for (int64_t base = first; base < end; base += kTile) {
            if (base + kTile <= seen) continue;
            const int64_t count = end - base < kTile ? end - base : kTile;
            list_next(base + kTile);
            for (int64_t h = 0; h < item.num_heads; ++h) {
                load_tile(base, count, seen, item.kv_head + h);
                const int64_t row = h * item.rows_per_head;
                float* weights = work.weights + row * kTile;
                multiply<is_paired, false>(work.q + row * work.dim, work.dim, work.k, kTile,
                                           depth(), weights, kTile, item.rows_per_head,
                                           padded(count));
                for (int64_t r = 0; r < item.rows_per_head; ++r) weigh(row + r, base);
                multiply<false, true>(weights, kTile, work.v, work.dim, count,
                                      work.o + row * work.dim, work.dim, item.rows_per_head,
                                      work.dim);
            }
        }
    }

    // What to fetch while a tile is worked on: the next one, or the first of the item after this.
    void list_next(int64_t next) {
        fetcher.clear();
        const int64_t last_span = item.end_span * kSpan, end = end_seen();
        const int64_t stop = last_span < end ? last_span : end;
        if (next < stop) list_stretches(&fetcher, next, stop < next + kTile ? stop : next + kTile);
        else if (ahead) PagedTask(args, *ahead, nullptr, work).list_first(&fetcher);
    }

    // Merges (o, top, sum) of a span into what is there.
    void merge(int64_t row, const float* o, float top, float sum) {
        const float old_top = work.merged_top[row];
        const float new_top = old_top > top ? old_top : top;
        const VF floor = splat(new_top > kLowest ? new_top : kLowest);
        const VF old_share = exponential(splat(old_top) - floor);
        const VF share = exponential(splat(top) - floor);
        float* merged = work.merged_o + row * work.dim;
        for (int64_t i = 0; i < work.dim; i += W)
            store_raw(merged + i, fma(load_raw<VF>(o + i), share,
                                      load_raw<VF>(merged + i) * old_share));
        const float shared[2] = {old_share[0], share[0]};
        work.merged_sum[row] = work.merged_sum[row] * shared[0] + sum * shared[1];
        work.merged_top[row] = new_top;
    }

    void start_merging() {
        for (int64_t row = 0; row < item.num_rows(); ++row) {
            work.merged_top[row] = -INFINITY;
            work.merged_sum[row] = 0.0f;
        }
        std::memset(work.merged_o, 0, size_t(item.num_rows() * work.dim) * sizeof(float));
    }

    // Divides by the sum of the weights, the sink among them, and writes the rows out.
    void finish() {
        for (int64_t row = 0; row < item.num_rows(); ++row) {
            const int64_t place = (first_token + query_of(row)) * args.num_q_heads + head_of(row);
            float top = work.merged_top[row], sum = work.merged_sum[row];
            VF factor = splat(1.0f);
            if (args.sinks) {
                const float sink = args.sinks[head_of(row)];
                const float higher = sink > top ? sink : top;
                factor = exponential(splat(top - higher));
                sum = sum * factor[0] + exponential(splat(sink - higher))[0];
                top = higher;
            }
            factor = factor / splat(sum);
            T* o = static_cast<T*>(args.o) + place * args.head_dim;
            const float* merged = work.merged_o + row * work.dim;
            each_vector(args.head_dim, [&](int64_t i, int64_t n) {
                store_part<D>(o + i, load_raw<VF>(merged + i) * factor, n);
            });
            if (args.lse) args.lse[place] = top + std::log(sum);
        }
    }

    // One past the last position that a row of this item sees, and the first one.
    int64_t end_seen() const { return position_of(item.num_rows() - 1) + 1; }

    void run(float* partials) {
        load_queries();
        const int64_t end = end_seen(), seen = first_seen(0);
        if (item.partial < 0) start_merging();
        for (int64_t span = item.first_span; span < item.end_span; ++span) {
            const int64_t span_end = (span + 1) * kSpan;
            attend(span * kSpan, span_end < end ? span_end : end, seen);
            for (int64_t row = 0; row < item.num_rows(); ++row) {
                const float sum = sum_lanes(load_raw<VF>(work.sums + row * W));
                const float* o = work.o + row * work.dim;
                if (item.partial < 0) {
                    merge(row, o, work.top[row], sum);
                    continue;
                }
                float* to = partials + (item.partial + row) * (work.dim + 2);
                std::memcpy(to, o, size_t(work.dim) * sizeof(float));
                to[work.dim] = work.top[row];
                to[work.dim + 1] = sum;
            }
        }
        if (item.partial < 0) finish();
    }

    // Merges the partial results of all spans of these rows, which lie one after the other.
    void gather(const float* partials) {
        start_merging();
        partials += item.partial * (work.dim + 2);
        for (int64_t span = first_seen(0) / kSpan; span * kSpan < end_seen(); ++span)
            for (int64_t row = 0; row < item.num_rows(); ++row, partials += work.dim + 2)
                merge(row, partials, partials[work.dim], partials[work.dim + 1]);
        finish();
    }

    bool is_first_part() const {
        return item.partial >= 0 && item.first_span == first_seen(0) / kSpan;
    }

    // What the item will need first.
    void list_first(Fetcher* to) const {
        const int64_t seen = first_seen(0), first = item.first_span * kSpan;
        const int64_t from = first > seen ? first : seen, next = from / kTile * kTile + kTile;
        list_stretches(to, from, next < end_seen() ? next : end_seen());
    }
};

struct PagedPlan {
    const PagedArgs* args;
    PagedItem* items;
    int64_t num_items;
    int num_threads;
    float* partials;
};

template <class D>
void run_item(void* context, int64_t index) {
    const PagedPlan& plan = *static_cast<const PagedPlan*>(context);
    // From the back: later rows of a prompt see more, and long items should not come last.
    const PagedItem* item = plan.items + plan.num_items - 1 - index;
    const PagedItem* ahead = item - plan.num_threads;
    PagedTask<D>(*plan.args, *item, ahead >= plan.items ? ahead : nullptr,
                 make_work<typename D::T>(plan.args->head_dim))
        .run(plan.partials);
}

// How the batch is cut into items.
struct PagedCut {
    bool is_split;   // each span of a long request on its own
    bool is_joined;  // all heads of few rows together, since they read the same stretches of memory
};

// Lists the items; counts only, if `items` is null.
inline int64_t list_items(const PagedArgs& args, PagedCut cut, PagedItem* items,
                          int64_t* num_tiles, int64_t* num_partials) {
    const int64_t group = args.num_q_heads / args.num_kv_heads;
    int64_t count = 0, partials = 0;
    *num_tiles = 0;
    for (int64_t request = 0; request < args.num_reqs; ++request) {
        const int64_t query_len = args.cu_seqlens_q[request + 1] - args.cu_seqlens_q[request];
        const int64_t num_rows = query_len * group, start = args.seq_lens[request] - query_len;
        for (int64_t row = 0; row < num_rows; row += kMaxRows) {
            const int64_t rows = num_rows - row < kMaxRows ? num_rows - row : kMaxRows;
            const int64_t end = start + (row + rows - 1) / group + 1;
            int64_t seen = args.window ? start + row / group - args.window + 1 : 0;
            if (seen < 0) seen = 0;
            const int64_t first_span = seen / kSpan, end_span = (end + kSpan - 1) / kSpan;
            const int64_t num_spans = end_span - first_span;
            *num_tiles += ((end - seen) / kTile + 1) * args.num_kv_heads;
            const bool is_cut = cut.is_split && num_spans > 1;
            const bool is_joined = cut.is_joined && rows * args.num_kv_heads <= kMaxRows;
            const int64_t heads = is_joined ? args.num_kv_heads : 1;
            for (int64_t span = first_span; span < end_span; span = is_cut ? span + 1 : end_span)
                for (int64_t head = 0; head < args.num_kv_heads; head += heads, ++count) {
                    if (!items) continue;
                    const int64_t part = head * num_spans + (span - first_span) * heads;
                    items[count] = {int32_t(request), int32_t(head), int32_t(heads), int32_t(row),
                                    int32_t(rows), span, is_cut ? span + 1 : end_span,
                                    is_cut ? partials + part * rows : -1};
                }
            if (is_cut) partials += num_spans * args.num_kv_heads * rows;
        }
    }
    *num_partials = partials;
    return count;
}

template <class D>
void merge_item(void* context, int64_t index) {
    const PagedPlan& plan = *static_cast<const PagedPlan*>(context);
    const PagedWork<typename D::T> work = make_work<typename D::T>(plan.args->head_dim);
    PagedTask<D> task(*plan.args, plan.items[index], nullptr, work);
    if (task.is_first_part()) task.gather(plan.partials);
}

// Tiles below which waking other threads takes longer than the work.
constexpr int64_t kMinTilesPerThread = 4;

void paged(const PagedArgs& args, int num_threads) {
    int64_t num_tiles, num_partials;
    PagedCut cut = {false, true};
    int64_t count = list_items(args, cut, nullptr, &num_tiles, &num_partials);
    if (!count) return;
    if (num_tiles < kMinTilesPerThread * num_threads)
        num_threads = num_tiles / kMinTilesPerThread > 1 ? int(num_tiles / kMinTilesPerThread) : 1;
    // Too few items for the threads: long ones are cut, then heads are done apart.
    cut.is_split = num_threads > 1 && count < 4 * num_threads;
    if (cut.is_split) {
        count = list_items(args, cut, nullptr, &num_tiles, &num_partials);
        cut.is_joined = count >= 2 * num_threads;
        count = list_items(args, cut, nullptr, &num_tiles, &num_partials);
    }
    PagedPlan plan;
    plan.args = &args;
    plan.num_items = count;
    plan.num_threads = num_threads;
    plan.items = static_cast<PagedItem*>(scratch(kPlanSlot, size_t(count) * sizeof(PagedItem)));
    const size_t stride = size_t(padded(args.head_dim)) + 2;
    plan.partials = static_cast<float*>(
        scratch(kPartialSlot, size_t(num_partials) * stride * sizeof(float)));
    list_items(args, cut, plan.items, &num_tiles, &num_partials);
    with_dtype(args.dtype, [&](auto d) {
        typedef decltype(d) D;
        run_parallel(count, num_threads, run_item<D>, &plan);
        if (num_partials) run_parallel(count, num_threads, merge_item<D>, &plan);
    });
}

}  // namespace
}  // namespace deepinfer
