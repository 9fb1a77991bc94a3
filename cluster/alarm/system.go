package alarm

import (
	"cmp"
	"io/fs"
	"math"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// System measures this process and its machine.
type System struct {
	DataDir string // on the disk in question
}

// assumedMemory is used on machines whose memory is not known.
const assumedMemory = 1 << 30

// root is where Linux describes itself.
var root = os.DirFS("/")

// MemoryTotal implements Probe.
func (System) MemoryTotal() int64 { return cmp.Or(memoryTotal(root), assumedMemory) }

// MemoryUsed implements Probe.
func (System) MemoryUsed() int64 {
	if used, ok := resident(root); ok {
		return used
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys - m.HeapReleased)
}

// DiskFree implements Probe.
func (s System) DiskFree() (int64, error) {
	u, err := vfs.Default.GetDiskUsage(s.DataDir)
	return int64(min(u.AvailBytes, math.MaxInt64)), err
}

// Release implements Probe.
func (System) Release() { debug.FreeOSMemory() }

// heapGrowth is how much garbage, in percent of what is in use, the heap may
// hold. Most memory of a busy node is in the tables of its log store and in
// payloads, which are large, few, and without pointers. Scanning them costs next
// to nothing, whereas an equal amount of garbage would cost half a gigabyte.
const heapGrowth = 50

// LimitHeap implements Probe. GOMEMLIMIT and GOGC in the environment take
// precedence.
func (System) LimitHeap(limit int64) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(heapGrowth)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit)
	}
}

// resident reads the resident memory of this process.
func resident(root fs.FS) (bytes int64, ok bool) {
	text, err := fs.ReadFile(root, "proc/self/statm")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 2 {
		return 0, false
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err == nil
}

// memoryTotal returns the machine's memory, or the limit of this process's control
// group if that is less; 0: not known.
func memoryTotal(root fs.FS) int64 {
	total := int64(0)
	text, _ := fs.ReadFile(root, "proc/meminfo") // not on every system
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemTotal:" {
			kib, _ := strconv.ParseInt(f[1], 10, 64)
			total = kib << 10
		}
	}
	for _, name := range groupLimits(root) {
		text, err := fs.ReadFile(root, name)
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 && (total == 0 || n < total) {
			total = n
		}
	}
	return total
}

// groupLimits lists the files that may limit the memory of this process: those of
// its control group and of all enclosing groups, of cgroup v1 and v2.
func groupLimits(root fs.FS) []string {
	var files []string
	text, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		dir, name := "sys/fs/cgroup", "memory.max"
		if parts[1] != "" {
			if parts[1] != "memory" {
				continue
			}
			dir, name = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		for at := path.Clean("/" + parts[2]); ; at = path.Dir(at) {
			files = append(files, path.Join(dir, at, name))
			if at == "/" {
				break
			}
		}
	}
	return files
}
