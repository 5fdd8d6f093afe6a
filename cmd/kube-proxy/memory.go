package main

import (
	"runtime/debug"
	"time"
)

// startIsOver is how long after the first Sync the start is taken to be over.
const startIsOver = time.Second

// returnMemory gives the memory that nothing holds any more back to the system, after some time. The runtime would
// keep most of what the start needed for the heap to grow into, and what the next full Sync needs would come on top.
// It costs a collection, which runs beside everything else.
func returnMemory(after time.Duration) {
	time.AfterFunc(after, debug.FreeOSMemory)
}
