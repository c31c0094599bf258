// Philox4x32-10; see qmaps.philox for the meaning of its words.

// The words of elements [first, first + count) of a tensor.
inline void random_words(const NoiseKey& key, std::int64_t first, std::int64_t count,
                         std::uint32_t* words) {
    constexpr int kGroups = 16;  // side by side, so that the rounds vectorize
    const std::uint64_t begin = key.offset + static_cast<std::uint64_t>(first);
    std::uint64_t group = begin / 4;
    std::int64_t skip = static_cast<std::int64_t>(begin % 4);
    std::int64_t done = 0;
    while (done < count) {
        std::uint32_t c0[kGroups], c1[kGroups], c2[kGroups], c3[kGroups];
        for (int j = 0; j < kGroups; ++j) {
            const std::uint64_t number = group + static_cast<std::uint64_t>(j);
            c0[j] = static_cast<std::uint32_t>(number);
            c1[j] = static_cast<std::uint32_t>(number >> 32) | key.word1;
            c2[j] = key.word2;
            c3[j] = key.word3;
        }
        std::uint32_t k0 = key.seed, k1 = key.purpose;
        for (int round = 0; round < 10; ++round) {
            for (int j = 0; j < kGroups; ++j) {
                const std::uint64_t left = static_cast<std::uint64_t>(c0[j]) * 0xD2511F53u;
                const std::uint64_t right = static_cast<std::uint64_t>(c2[j]) * 0xCD9E8D57u;
                const std::uint32_t t1 = c1[j], t3 = c3[j];
                c0[j] = static_cast<std::uint32_t>(right >> 32) ^ t1 ^ k0;
                c1[j] = static_cast<std::uint32_t>(right);
                c2[j] = static_cast<std::uint32_t>(left >> 32) ^ t3 ^ k1;
                c3[j] = static_cast<std::uint32_t>(left);
            }
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        if (skip == 0 && count - done >= 4 * kGroups) {
            for (int j = 0; j < kGroups; ++j) {
                words[done + 4 * j] = c0[j];
                words[done + 4 * j + 1] = c1[j];
                words[done + 4 * j + 2] = c2[j];
                words[done + 4 * j + 3] = c3[j];
            }
            done += 4 * kGroups;
        } else {
            for (int j = 0; j < kGroups && done < count; ++j) {
                const std::uint32_t four[4] = {c0[j], c1[j], c2[j], c3[j]};
                for (int w = 0; w < 4 && done < count; ++w) {
                    if (skip > 0) {
                        --skip;
                    } else {
                        words[done++] = four[w];
                    }
                }
            }
        }
        group += kGroups;
    }
}

inline float uniform_of(std::uint32_t word) {
    return static_cast<float>(static_cast<std::int32_t>(word >> 8)) * 5.9604644775390625e-08f;
}
