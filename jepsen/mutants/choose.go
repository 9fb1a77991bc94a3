package mutants

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// Choose returns the mutants that a list in words names, separated by commas:
// ids and patterns of them (queue-*), folders (fsm/queue), promises (S7), a share
// in percent (10%, spread over the list), or all.
func Choose(from []Mutant, words string) ([]Mutant, error) {
	chosen := make([]bool, len(from))
	for word := range strings.SplitSeq(words, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		some, err := matching(from, word)
		if err != nil {
			return nil, err
		}
		found := false
		for i, yes := range some {
			chosen[i] = chosen[i] || yes
			found = found || yes
		}
		if !found {
			return nil, fmt.Errorf("%w: nothing is %q", ErrList, word)
		}
	}
	return pick(from, chosen), nil
}

// matching says which mutants a word names.
func matching(from []Mutant, word string) ([]bool, error) {
	some := make([]bool, len(from))
	if percent, yes := strings.CutSuffix(word, "%"); yes {
		n, err := strconv.Atoi(percent)
		if err != nil || n < 1 || n > 100 {
			return nil, fmt.Errorf("%w: share %q", ErrList, word)
		}
		for i := range from {
			some[i] = i*n/100 != (i+1)*n/100
		}
		return some, nil
	}
	for i, m := range from {
		byID, err := path.Match(word, m.ID)
		if err != nil {
			return nil, fmt.Errorf("%w: %q: %w", ErrList, word, err)
		}
		some[i] = word == "all" || byID || m.breaks(word) || path.Dir(m.Change.File) == word
	}
	return some, nil
}

func (m Mutant) breaks(promise string) bool {
	for _, p := range m.Breaks {
		if p == promise {
			return true
		}
	}
	return false
}

// Shard returns the part that a word like "2/4" names, the second of four:
// every mutant is in exactly one of them. Empty means all.
func Shard(from []Mutant, word string) ([]Mutant, error) {
	if word == "" {
		return from, nil
	}
	first, last, _ := strings.Cut(word, "/")
	k, err1 := strconv.Atoi(first)
	n, err2 := strconv.Atoi(last)
	if err1 != nil || err2 != nil || k < 1 || k > n {
		return nil, fmt.Errorf("%w: shard %q", ErrList, word)
	}
	chosen := make([]bool, len(from))
	for i := range from {
		chosen[i] = i%n == k-1
	}
	return pick(from, chosen), nil
}

func pick(from []Mutant, chosen []bool) []Mutant {
	var some []Mutant
	for i, yes := range chosen {
		if yes {
			some = append(some, from[i])
		}
	}
	return some
}
