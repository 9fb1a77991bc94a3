package fsm

// Filters are those of exchanges of type x-filter: who has registered them knows what the
// programs of bindings say, and what an edit changes. What they decide is logged, so that
// two calls of Match need not say the same. They are called from any goroutine.
type Filters interface {
	// NewFilterSet returns an empty set for an exchange.
	NewFilterSet(vhost, exchange string) FilterSet
	// Edited returns the copy of a message that an edit of a set makes; sequence is the
	// number of the message in the queue that it comes from. It returns the same each time.
	Edited(p Payload, edit []byte, sequence uint64) Payload
}

// FilterSet are the programs of an exchange's bindings. One goroutine at a time uses it.
type FilterSet interface {
	// Add adds a binding to a queue, and Remove removes it. A program that cannot be read
	// makes no copies.
	Add(id uint64, queue string, program []byte)
	Remove(id uint64)
	// Match returns the copies of a message.
	Match(p Payload, f FilterFacts) []FilterCopy
}

// FilterFacts are what is known of a message that is forwarded.
type FilterFacts struct {
	Sequence   uint64 // its number in its queue
	EnqueuedAt Time
	ExpireAt   Time // 0: never
	// Described returns what is said of a queue of the vhost, empty: nothing; nil: nothing
	// is said of any.
	Described func(queue string) []byte
}

// FilterCopy is a copy of a message for a queue, which need not be there.
type FilterCopy struct {
	Queue string
	Edit  []byte           // at most MaxFilterEdit; empty: it is as it is
	TTL   Optional[Millis] // the longest; Forever: it does not expire, whatever the message does
}

// Forever is the TTL of what does not expire.
const Forever = Millis(MaxTime)

// MaxFilterEdit is the size of the largest edit of a FilterCopy.
const MaxFilterEdit = 32 << 10
