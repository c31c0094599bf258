// What instruction sets do without that store past the caches.

inline bool look_up_least(const Lookup&, const std::uint8_t*, bool, const ScaleView&, std::int64_t,
                          float*, std::int64_t, bool) {
    return false;
}

// There are no stores past the caches that every compiler knows.
inline constexpr bool kStreams = false;
inline void stream(const float*, float*, std::int64_t) {}
inline void finish_streams() {}

// Nothing is looked up in registers that benchmarks count.
inline int decode_shuffles(const Codebook&) { return 0; }
inline int encode_shuffles(const Codebook&, bool) { return 0; }
