package watchdog

import (
	"io"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Awake time passes like other time as long as the process runs. A stall is counted,
// and awake time hardly passes during it.
func TestAwakeClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, stop := &AwakeClock{}, make(chan struct{})
		var done sync.WaitGroup
		done.Go(func() { p.Run(stop, func() bool { return false }) })
		time.Sleep(10*time.Second + tickEvery/2)
		if total, longest := p.Stalls(); p.Awake() != 10*time.Second || total != 0 || longest != 0 {
			t.Errorf("awake for %v, stalled for %v, at most %v", p.Awake(), total, longest)
		}
		close(stop)
		done.Wait()
		before := p.Awake()
		p.begin()
		for _, d := range []time.Duration{tickEvery + 5*time.Second, tickEvery + time.Second, tickEvery} {
			time.Sleep(d)
			p.tick(false)
		}
		if total, longest := p.Stalls(); total != 6*time.Second || longest != 5*time.Second {
			t.Errorf("stalled for %v, at most %v", total, longest)
		}
		if d := p.Awake() - before; d != 2*maxTick+tickEvery {
			t.Errorf("awake for %v meanwhile", d)
		}
	})
}

// A clock that rests shows the time to whoever asks, and counts stalls as before.
func TestAwakeClockRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, stop, asked := &AwakeClock{}, make(chan struct{}), 0
		var done sync.WaitGroup
		done.Go(func() { p.Run(stop, func() bool { asked++; return true }) })
		time.Sleep(tickEvery + 7*time.Second + 130*time.Millisecond)
		for _, d := range []time.Duration{0, 10 * time.Millisecond, restEvery} {
			before := p.Awake()
			time.Sleep(d)
			if got := p.Awake() - before; got != d {
				t.Errorf("%v have passed, it shows %v", d, got)
			}
		}
		if asked > 17 {
			t.Errorf("it has ticked %d times", asked)
		}
		if total, _ := p.Stalls(); total != 0 {
			t.Errorf("stalled for %v", total)
		}
		close(stop)
		done.Wait()
		next := p.begin()
		time.Sleep(next)
		next = p.tick(true)
		before := p.Awake()
		time.Sleep(next + 10*time.Second)
		if got, want := p.Awake()-before, next+maxTick-tickEvery; got != want {
			t.Errorf("awake for %v during a stall, want %v", got, want)
		}
		p.tick(false)
		if total, longest := p.Stalls(); total != 10*time.Second || longest != 10*time.Second {
			t.Errorf("stalled for %v, at most %v", total, longest)
		}
	})
}

// Every kind of write is watched from its start to its end.
func TestDiskWaits(t *testing.T) {
	var mu sync.Mutex
	var hang chan struct{}
	entered := make(chan struct{}, operations*2)
	p := &AwakeClock{}
	d := NewDisk(p, func() {
		mu.Lock()
		h := hang
		mu.Unlock()
		if h != nil {
			entered <- struct{}{}
			<-h
		}
	})
	dir := t.TempDir()
	fs := d.FS(vfs.Default)
	path := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	f, err := fs.Create(path("f"), vfs.WriteCategoryUnspecified)
	must(err)
	rw, err := fs.OpenReadWrite(path("f"), vfs.WriteCategoryUnspecified)
	must(err)
	folder, err := fs.OpenDir(dir)
	must(err)
	whole := false // the filesystem cannot sync a part of a file
	for name, write := range map[string]func() error{
		"write":    func() error { _, err := f.Write([]byte("x")); return err },
		"write at": func() error { _, err := rw.WriteAt([]byte("x"), 0); return err },
		"room":     func() error { return f.Preallocate(0, 1) },
		"sync":     f.Sync,
		"data":     f.SyncData,
		"part":     func() (err error) { whole, err = f.SyncTo(1); return err },
		"folder":   folder.Sync,
		"create":   func() error { g, err := fs.Create(path("g"), vfs.WriteCategoryUnspecified); return closed(g, err) },
		"make":     func() error { return fs.MkdirAll(path("d"), 0o700) },
		"link": func() error {
			_ = fs.Remove(path("l"))
			return fs.Link(path("f"), path("l"))
		},
		"reuse": func() error {
			g, err := fs.Create(path("old"), vfs.WriteCategoryUnspecified)
			if err := closed(g, err); err != nil {
				return err
			}
			g, err = fs.ReuseForWrite(path("old"), path("new"), vfs.WriteCategoryUnspecified)
			return closed(g, err)
		},
		"rename": func() error {
			g, err := fs.Create(path("a"), vfs.WriteCategoryUnspecified)
			if err := closed(g, err); err != nil {
				return err
			}
			return fs.Rename(path("a"), path("b"))
		},
		"remove all": func() error { return fs.RemoveAll(path("nothing")) },
	} {
		release := make(chan struct{})
		mu.Lock()
		hang = release
		mu.Unlock()
		ended := make(chan error)
		go func() { ended <- write() }()
		<-entered
		p.awake.Add(int64(maxTick + tickEvery))
		if got := d.Waiting(); got != maxTick+tickEvery {
			t.Errorf("%s: waiting for %v", name, got)
		}
		mu.Lock()
		hang = nil
		mu.Unlock()
		close(release)
		must(<-ended)
		if got := d.Waiting(); got != 0 {
			t.Errorf("%s: waiting for %v after its end", name, got)
		}
	}
	if n := d.syncs.Load(); n != 3 && !(whole && n == 4) {
		t.Errorf("%d syncs, want those of two files and a folder", n)
	}
	must(f.Close())
	must(rw.Close())
	must(folder.Close())
}

// probe is a disk on which time passes while something is opened or read.
type probe struct {
	vfs.FS
	pass func()
}

type probedFile struct {
	vfs.File
	pass func()
}

func (p probe) opened(f vfs.File, err error) (vfs.File, error) {
	p.pass()
	return probedFile{f, p.pass}, err
}

func (p probe) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	return p.opened(p.FS.Open(name, o...))
}

func (p probe) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return p.opened(p.FS.OpenReadWrite(name, c, o...))
}

func (p probe) OpenDir(name string) (vfs.File, error) { return p.opened(p.FS.OpenDir(name)) }

func (p probedFile) Read(b []byte) (int, error) {
	p.pass()
	return p.File.Read(b)
}

func (p probedFile) ReadAt(b []byte, at int64) (int, error) {
	p.pass()
	return p.File.ReadAt(b, at)
}

// Whatever opens or reads a file is watched as well, and goes through no gate.
func TestReadsWait(t *testing.T) {
	c := &AwakeClock{}
	d := NewDisk(c, func() { t.Error("a read is held up") })
	var longest time.Duration
	disk := vfs.NewMem()
	f, err := disk.Create("f", vfs.WriteCategoryUnspecified)
	if err := closed(f, err); err != nil {
		t.Fatal(err)
	}
	fs := d.FS(probe{FS: disk, pass: func() {
		c.awake.Add(int64(time.Second))
		longest = max(longest, d.Waiting())
	}})
	file, err := fs.Open("f")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for name, do := range map[string]func(){
		"open":              func() { _, _ = fs.Open("f") },
		"open, to write":    func() { _, _ = fs.OpenReadWrite("f", vfs.WriteCategoryUnspecified) },
		"open a folder":     func() { _, _ = fs.OpenDir("/") },
		"read":              func() { _, _ = file.Read(nil) },
		"read at an offset": func() { _, _ = file.ReadAt(nil, 0) },
	} {
		longest = 0
		if do(); longest != time.Second || d.Waiting() != 0 {
			t.Errorf("%s: waiting for %v, and for %v after its end", name, longest, d.Waiting())
		}
	}
}

func closed(c io.Closer, err error) error {
	if err != nil {
		return err
	}
	return c.Close()
}

// Writes beyond those that are watched end as well, and leave nothing behind.
func TestDiskManyWriters(t *testing.T) {
	p := &AwakeClock{}
	d := NewDisk(p, nil)
	var slots []int
	for range operations + 9 {
		slots = append(slots, d.begin())
	}
	p.awake.Add(int64(tickEvery))
	if d.Waiting() != tickEvery {
		t.Errorf("waiting for %v", d.Waiting())
	}
	for _, slot := range slots {
		d.end(slot)
	}
	if d.Waiting() != 0 {
		t.Error("something is left")
	}
}

func BenchmarkDiskWrite(b *testing.B) {
	d := NewDisk(&AwakeClock{}, nil)
	b.ReportAllocs()
	for b.Loop() {
		d.end(d.begin())
	}
}

// wholeFile is on a filesystem that cannot sync a part of a file.
type wholeFile struct{ vfs.File }

func (wholeFile) SyncTo(int64) (bool, error) { return true, nil }

// TestWholeSyncs: a sync of a part counts where the filesystem syncs all instead.
func TestWholeSyncs(t *testing.T) {
	d := NewDisk(&AwakeClock{}, nil)
	if full, err := (watchedFile{File: wholeFile{}, d: d}).SyncTo(1); !full || err != nil || d.syncs.Load() != 1 {
		t.Errorf("%v, %v, %d syncs", full, err, d.syncs.Load())
	}
}
