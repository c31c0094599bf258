// Guesses of codes by a straight line in each bucket.
#pragma once

#include "codebook.hpp"

namespace qmaps {

// Fill in search.buckets: try, for ever more comparisons, whether guesses exist. Every cell of
// every bucket is checked, so a guess that is found leads to the exact code.
void find_buckets(Search& search);

// Fill in search.pieces, if no piece holds two limits.
void find_pieces(Search& search);

// Whether values mirror each other about zero, which is one of them.
bool is_mirrored(const Codebook& codebook);

// Fill in codebook.folded, if its values are such.
void find_folded(Codebook& codebook);

}  // namespace qmaps
