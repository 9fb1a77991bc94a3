package traffic

// Series is what is known of one object. The table's lock guards it.
//
// Invariant: the sample of counter c at the newest slot is sampled[c], and the one k slots before it
// is sampled[c] - steps[c][newest] - … - steps[c][newest-k+1], each index modulo Kept; steps[c] nil
// stands for zeros.
type series struct {
	total   Counts // without what tallies hold
	sampled Counts
	last    [counters]int32 // steps to the newest sample, from the one before
	steps   [counters]*[Kept]int32
	idle    int // slots without a change, up to Kept
}

// sample takes the sample of a slot, which is gap slots after the one before. keep: its steps are
// kept.
func (s *series) sample(slot, gap int64, keep bool) {
	if s.total == s.sampled {
		s.last = [counters]int32{}
		if s.idle += int(min(gap, Kept)); s.idle >= Kept {
			s.idle, s.steps = Kept, [counters]*[Kept]int32{}
			return
		}
	} else {
		s.idle = 0
	}
	for c := range s.total {
		step := clamp(int64(s.total[c] - s.sampled[c]))
		if s.last[c] = step; s.steps[c] == nil {
			if step == 0 || !keep {
				continue
			}
			s.steps[c] = new([Kept]int32)
		}
		for k := max(slot-gap+1, slot-Kept+1); k < slot; k++ {
			s.steps[c][k%Kept] = 0
		}
		s.steps[c][slot%Kept] = step
	}
	s.sampled = s.total
}

// forget drops the samples, and the rate with them. The counts stay.
func (s *series) forget() {
	s.sampled, s.last, s.steps = s.total, [counters]int32{}, [counters]*[Kept]int32{}
}

// clamp keeps a step within what is stored: two billions in five seconds.
func clamp(n int64) int32 { return int32(max(min(n, 1<<31-1), -1<<31)) }

// samples appends the samples of a counter to list, the newest first: count of them, each step slots
// before the one before. The first is that of slot at, or the newest one if that is older.
func (s *series) samples(list []uint64, c Counter, newest, at int64, r Range) []uint64 {
	value, steps, k := s.sampled[c], s.steps[c], newest
	for i := range r.Count {
		for want := max(at-int64(i*r.Step), newest-Kept+1); k > want; k-- {
			if steps != nil {
				value -= uint64(int64(steps[k%Kept]))
			}
		}
		list = append(list, value)
	}
	return list
}
