package pattern

import "slices"

// MaxSteps bounds the work of one match: instructions performed, and words of
// memory cleared.
const MaxSteps = 1 << 17

// Match reports whether the pattern matches anywhere in a name.
func (p *Pattern) Match(name string) bool {
	found, _ := p.Find(name)
	return found
}

// Find is Match, and returns the steps that it took: more than MaxSteps if it gave
// up, and then the name does not match.
func (p *Pattern) Find(name string) (found bool, steps int) {
	m := matcher{p: p, name: name, stride: len(name) + 1}
	if p.groups > 0 {
		m.groups = make([]span, p.groups+1)
		for i := range m.groups {
			m.groups[i].from = -1
		}
		m.opened = make([]int, p.groups+1)
	} else if words := (p.splits*m.stride + 63) / 64; words <= len(m.few) {
		m.seen = m.few[:words]
	} else {
		m.seen = make([]uint64, words)
		m.steps += words
	}
	m.marks = m.fewMarks[:]
	if p.marks > len(m.fewMarks) {
		m.marks = make([]int, p.marks)
	}
	for start := 0; start <= len(name) && m.steps <= MaxSteps; start++ {
		if m.run(0, start) >= 0 {
			return m.steps <= MaxSteps, m.steps
		}
		if p.anchored {
			break
		}
	}
	return false, m.steps
}

// span is what a group has matched; from < 0: nothing.
type span struct{ from, to int }

// matcher is one match.
//
// Invariant: a bit of seen is set only if the program, or the program within it
// that the split belongs to, has failed from this split at this place, or is about
// to be tried there. That depends on nothing else if there are no back-references:
// seen is nil if there are.
type matcher struct {
	p      *Pattern
	name   string
	steps  int
	stride int
	seen   []uint64 // by split and place
	marks  []int
	groups []span // nil: there are no back-references
	opened []int  // by group, where it was opened
	here   int    // where the innermost look-behind began

	few      [32]uint64 // for seen, and fewMarks for marks, if they are small
	fewMarks [8]int
}

// run performs the program from pc on, at a place in the name. It returns where the
// match ends; -1: there is none, or there have been too many steps.
//
// It calls itself where it may have to come back, at most once per step, so the
// stack is bounded, too.
func (m *matcher) run(pc, pos int) int {
	for {
		if m.steps++; m.steps > MaxSteps {
			return -1
		}
		in := &m.p.code[pc]
		pc++
		switch in.op {
		case opByte:
			if pos == len(m.name) || m.name[pos] != in.b {
				return -1
			}
			pos++
		case opSet:
			if pos == len(m.name) || !m.p.sets[in.x].has(m.name[pos]) {
				return -1
			}
			pos++
		case opSplit:
			if m.again(in.n, pos) {
				return -1
			}
			if end := m.run(in.x, pos); end >= 0 {
				return end
			}
			pc = in.y
		case opRun:
			return m.runOf(in, pc, pos)
		case opJump:
			pc = in.x
		case opAssert:
			if !m.holds(in.assert, pos) {
				return -1
			}
		case opProgress:
			if pos != m.marks[in.x] {
				pc = in.y
			}
		case opMark, opOpen, opClose:
			return m.noted(in, pc, pos)
		case opBackref:
			length, ok := m.repeated(in, pos)
			if !ok {
				return -1
			}
			pos += length
		case opLookaround, opAtomic:
			if m.groups != nil {
				return m.tryOrForget(in, pc, pos)
			}
			if pos = m.try(in, pc, pos); pos < 0 {
				return -1
			}
			pc = m.p.subs[in.x].next
		case opMatch:
			return pos
		case opMatchHere:
			if pos != m.here {
				return -1
			}
			return pos
		}
	}
}

// runOf goes on behind each number of bytes of a set in turn. What is next is tried
// once at each place.
func (m *matcher) runOf(in *instruction, pc, pos int) int {
	set, next, far := &m.p.sets[in.x], &m.p.code[pc], pos
	for far < len(m.name) && set.has(m.name[far]) {
		far++
	}
	m.steps += (far - pos) / 4
	for i := range far - pos + 1 {
		at := far - i
		if in.lazy {
			at = pos + i
		}
		if m.again(in.n, at) {
			continue
		}
		if next.op == opByte && (at == len(m.name) || m.name[at] != next.b) {
			continue // not worth a step
		}
		if end := m.run(pc, at); end >= 0 || m.steps > MaxSteps {
			return end
		}
	}
	return -1
}

// noted notes a place and goes on. If that fails, what was noted before stands.
func (m *matcher) noted(in *instruction, pc, pos int) (end int) {
	switch in.op {
	case opMark:
		before := m.marks[in.x]
		m.marks[in.x] = pos
		if end = m.run(pc, pos); end < 0 {
			m.marks[in.x] = before
		}
	case opOpen:
		before := m.opened[in.x]
		m.opened[in.x] = pos
		if end = m.run(pc, pos); end < 0 {
			m.opened[in.x] = before
		}
	default:
		before := m.groups[in.x]
		m.groups[in.x] = span{m.opened[in.x], pos}
		if end = m.run(pc, pos); end < 0 {
			m.groups[in.x] = before
		}
	}
	return end
}

// tryOrForget is try and what follows. If that fails, groups have matched what they
// had before.
func (m *matcher) tryOrForget(in *instruction, pc, pos int) int {
	before := slices.Clone(m.groups)
	m.steps += len(before)
	end := m.try(in, pc, pos)
	if m.p.subs[in.x].negative {
		copy(m.groups, before)
	}
	if end >= 0 {
		end = m.run(m.p.subs[in.x].next, end)
	}
	if end < 0 {
		copy(m.groups, before)
	}
	return end
}

// try performs the program within the program. It returns where to go on behind
// it: -1 if the look-around does not hold, or the atomic group does not match.
func (m *matcher) try(in *instruction, pc, pos int) int {
	s := &m.p.subs[in.x]
	end := -1
	if s.behind {
		outer := m.here
		m.here = pos
		m.clear(s) // what fails depends on here
		for start := pos - s.least; end < 0 && start >= max(0, pos-s.limit); start-- {
			end = m.run(pc, start)
		}
		m.here = outer
	} else if end = m.run(pc, pos); end >= 0 {
		m.clear(s) // it has not failed from where it began
	}
	switch {
	case m.steps > MaxSteps, in.op == opLookaround && (end >= 0) == s.negative:
		return -1
	case in.op == opLookaround:
		return pos
	}
	return end
}

// again reports whether a split has been tried at a place, and notes that it has.
func (m *matcher) again(split, pos int) bool {
	if m.seen == nil {
		return false
	}
	at := split*m.stride + pos
	word, bit := &m.seen[at/64], uint64(1)<<(at%64)
	known := *word&bit != 0
	*word |= bit
	return known
}

// clear forgets what has been tried within a program.
func (m *matcher) clear(s *sub) {
	if m.seen == nil {
		return
	}
	from, to := s.splits*m.stride, s.end*m.stride
	m.steps += (to - from) / 64
	for ; from < to && from%64 != 0; from++ {
		m.seen[from/64] &^= 1 << (from % 64)
	}
	for ; from+64 <= to; from += 64 {
		m.seen[from/64] = 0
	}
	for ; from < to; from++ {
		m.seen[from/64] &^= 1 << (from % 64)
	}
}

// holds asks for an assertion.
func (m *matcher) holds(a assertion, pos int) bool {
	size := len(m.name)
	switch a {
	case atStart:
		return pos == 0
	case atEnd:
		return pos == size
	case atLastLine:
		return pos == size || pos == size-1 && m.name[pos] == '\n'
	case atLineStart:
		return pos == 0 || pos < size && m.name[pos-1] == '\n'
	case atLineEnd:
		return pos == size || m.name[pos] == '\n'
	}
	before, behind := pos > 0 && isWord(m.name[pos-1]), pos < size && isWord(m.name[pos])
	return (before != behind) == (a == atBoundary)
}

// repeated reports whether what a group has matched comes again, and its length.
func (m *matcher) repeated(in *instruction, pos int) (length int, ok bool) {
	g := m.groups[in.x]
	if g.from < 0 || g.to-g.from > len(m.name)-pos {
		return 0, false
	}
	length = g.to - g.from
	m.steps += length
	for i := range length {
		a, b := m.name[g.from+i], m.name[pos+i]
		if a != b && !(in.fold && lower(a) == lower(b)) {
			return 0, false
		}
	}
	return length, true
}

// lower returns a letter in lower case, and any other byte as it is.
func lower(b byte) byte {
	if isUpper(b) {
		return b + 'a' - 'A'
	}
	return b
}
