package fsm

import "fmt"

// OldestVersion and NewestVersion bound the machine versions that this program
// supports: see the section on versions in DESIGN.md of fsm/catalog.
//
// Machines of version 2 do what those of version 1 do. What is new is on the
// disk: large payloads lie in segments, see UseSegments in cluster/raftlog.
// Those of version 3 differ: fsm/queue/DESIGN.md, "Version", lists in what.
const (
	OldestVersion = 1
	NewestVersion = 3
)

// Versions are the first and the last version that a program supports. The zero
// Versions stand for programs that announce none: version 1 only.
type Versions struct{ Oldest, Newest uint32 }

// Supported are the versions of this program.
var Supported = Versions{OldestVersion, NewestVersion}

// Announced returns the versions that a program has announced.
func Announced(p interface {
	GetOldestVersion() uint32
	GetNewestVersion() uint32
}) Versions {
	return Versions{max(p.GetOldestVersion(), 1), max(p.GetNewestVersion(), 1)}
}

// Include reports whether a program of these versions supports version v.
func (s Versions) Include(v uint32) bool { return s.Oldest <= v && v <= s.Newest }

// String returns "1" or "1 to 2".
func (s Versions) String() string {
	if s.Oldest == s.Newest {
		return fmt.Sprint(s.Newest)
	}
	return fmt.Sprintf("%d to %d", s.Oldest, s.Newest)
}
