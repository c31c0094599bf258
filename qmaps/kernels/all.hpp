// Everything that one element goes through, and every rule by its name.
#include "language.hpp"

#include "floats.hpp"
#include "philox.hpp"
#include "pack.hpp"
#include "scales.hpp"
#include "codec.hpp"
#include "updates.hpp"

#include "rules/terms.hpp"
#include "rules/layerwise.hpp"

#include "rules/adagrad.hpp"
#include "rules/adam.hpp"
#include "rules/ademamix.hpp"
#include "rules/lamb.hpp"
#include "rules/lars.hpp"
#include "rules/lion.hpp"
#include "rules/rmsprop.hpp"
#include "rules/sgd.hpp"
