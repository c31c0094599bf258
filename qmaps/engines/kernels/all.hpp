// Everything that one element goes through. The rules come after it, as declarations.py lists them:
// the headers in rules/ that declare none, which others use, and then those that do, by name.
#include "language.hpp"

#include "floats.hpp"
#include "remainders.hpp"
#include "philox.hpp"
#include "half_codes.hpp"
#include "pack.hpp"
#include "scales.hpp"
#include "scale_formats.hpp"
#include "codec.hpp"
#include "powers.hpp"
#include "updates.hpp"
#include "declare.hpp"
