package fsm

import (
	"math/bits"
	"strings"
)

// maxNearest bounds the names that Nearest compares, in bytes.
const maxNearest = 62

// Nearest returns the name among known that is spelled most like name: by at
// most limit letters that are missing, too many, wrong, or in the place of
// their neighbour; empty: none is. Case does not count, so a known name in
// capitals is at distance 0. Of equally near names it returns the first.
//
// It allocates nothing, and costs next to nothing for names whose length is
// not that of a known one, give or take limit.
func Nearest(name string, known []string, limit int) string {
	best := ""
	for _, k := range known {
		if d := distance(name, k, limit); d <= limit {
			best, limit = k, d-1
		}
	}
	return best
}

// distance counts the letters by which two names differ, as Nearest says, but
// gives any number above limit once it is known to be more.
func distance(a, b string, limit int) int {
	if len(a) > maxNearest || len(b) > maxNearest || len(a)-len(b) > limit || len(b)-len(a) > limit {
		return limit + 1
	}
	if la, lb := letters(a), letters(b); bits.OnesCount32(la&^lb) > limit || bits.OnesCount32(lb&^la) > limit {
		return limit + 1 // each change brings or removes one letter
	}
	var rows [3][maxNearest + 1]uint8
	for j := range len(b) + 1 {
		rows[0][j] = uint8(j)
	}
	for i := 1; i <= len(a); i++ {
		before, above, row := &rows[(i+1)%3], &rows[(i-1)%3], &rows[i%3]
		row[0] = uint8(i)
		least := row[0]
		for j := 1; j <= len(b); j++ {
			wrong := uint8(1)
			if lower(a[i-1]) == lower(b[j-1]) {
				wrong = 0
			}
			row[j] = min(above[j]+1, row[j-1]+1, above[j-1]+wrong)
			if i > 1 && j > 1 && lower(a[i-1]) == lower(b[j-2]) && lower(a[i-2]) == lower(b[j-1]) {
				row[j] = min(row[j], before[j-2]+1)
			}
			least = min(least, row[j])
		}
		if int(least) > limit+1 {
			return limit + 1 // a swap may take back one
		}
	}
	return int(rows[len(a)%3][len(b)])
}

// letters is the set of the bytes in s, with some bytes taken for one.
func letters(s string) (set uint32) {
	for i := range len(s) {
		set |= 1 << (s[i] & 31) // the same for a letter and its capital
	}
	return set
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// Extension reports whether a name of an argument or a header begins as those
// that are no part of AMQP do.
func Extension(name string) bool {
	return strings.HasPrefix(name, "x-") || strings.HasPrefix(name, "X-")
}
