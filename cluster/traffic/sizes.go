package traffic

// SizeBounds are the upper bounds of the sizes that are counted together, in bytes. They are those of
// RabbitMQ.
var SizeBounds = [...]int{100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000}

// Sizes counts the bodies of messages by their size.
type Sizes struct {
	Counts [len(SizeBounds) + 1]uint64 // up to each bound and above the one before; the last: larger ones
	Bytes  uint64                      // of all
}

func (s *Sizes) count(bytes int) {
	i := 0
	for i < len(SizeBounds) && bytes > SizeBounds[i] {
		i++
	}
	s.Counts[i]++
	s.Bytes += uint64(bytes)
}

func (s *Sizes) add(more *Sizes) {
	for i, n := range more.Counts {
		s.Counts[i] += n
	}
	s.Bytes += more.Bytes
}
