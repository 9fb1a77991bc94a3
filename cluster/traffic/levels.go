package traffic

import (
	"sync"
	"time"
)

// Level is one of the numbers of a node's process whose rates are known. Their order is that between
// nodes: new ones come at the end.
type Level uint8

// The levels. Those from Collections on only grow.
const (
	MemoryUsed Level = iota // bytes
	DiskFree                // bytes
	FilesUsed               // open descriptors
	Goroutines
	Collections     // of garbage
	BytesReclaimed  // of the heap, by collections
	ContextSwitches // of the threads
	BytesRead       // from storage
	BytesWritten    // to it
	LevelCount
)

// Levels has a number for each level.
type Levels [LevelCount]uint64

// LevelRates knows the changes in a second of the levels of a node. The zero value knows none.
type LevelRates struct {
	mu      sync.Mutex
	newest  moment // of the samples
	sampled Levels
	rates   [LevelCount]float64
}

// Sample takes the samples of a time's slot. The first ones give no rates. Nothing happens unless the
// slot is above that of the samples before.
func (r *LevelRates) Sample(at time.Time, now Levels) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next, due := r.newest.next(at)
	if !due {
		return
	}
	if r.newest.slot > 0 {
		for i := range now {
			r.rates[i] = float64(int64(now[i]-r.sampled[i])) / next.since.Seconds()
		}
	}
	r.newest, r.sampled = next, now
}

// Rates are those between the newest samples.
func (r *LevelRates) Rates() [LevelCount]float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rates
}

// Forget makes all rates zero until the next samples, which count from the newest ones.
func (r *LevelRates) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rates = [LevelCount]float64{}
}
