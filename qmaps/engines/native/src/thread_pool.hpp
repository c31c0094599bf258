// Threads that wait for work between calls of the engine.
#pragma once

namespace qmaps {

// Call work(context, thread) once in each thread of a team: in the calling thread, with the number
// 0, and in up to `threads` - 1 others, each with its number from 1 on, which is the same in every
// call. Returns when all are done.
//
// Any number of others, none included, may take part: those that are held up come too late, and one
// that belongs to the team of another call does not come at all. `work` must not throw.
//
// A process that was forked has threads of its own.
void in_team(int threads, void (*work)(const void* context, int thread), const void* context);

}  // namespace qmaps
