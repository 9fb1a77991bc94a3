package typed

import (
	"context"
	"os"
	"os/exec"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/cmd/tidy/page"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/internal/long"
)

// limit is how long a command may take, and building how long one may that builds programs.
const limit, building = 2 * time.Minute, 8 * time.Minute

// known is what the test knows of a page beside its text.
type known struct {
	installed bool              // the programs are, as a package does it
	needs     [][]string        // commands without which the page is skipped, here
	given     string            // commands that make what the page takes for granted
	terminals map[string]string // beginnings of commands that do not return, and what they have written when the next is typed
	names     map[string]string // that stand for what is answered, and what that looks like
	untyped   map[string]string // beginnings of blocks and of lines that are not typed, and why
}

// limit is how long a command of the page may take.
func (k known) limit() time.Duration {
	if k.installed {
		return limit
	}
	return building
}

// blocks are the blocks of a page.
func blocks(text string) (all []page.Block) {
	for _, b := range page.Code(text) {
		if strings.HasSuffix(b.Text, "\n") {
			all = append(all, b)
		}
	}
	return all
}

// plan is what of a page is typed, in order.
func (k known) plan(t *testing.T, name, text string) (all []step) {
	t.Helper()
	met := map[string]bool{}
	for _, b := range blocks(text) {
		typed := steps(b, func(line string) bool {
			for begins := range k.untyped {
				if strings.HasPrefix(line, begins) {
					met[begins] = true
					return true
				}
			}
			return false
		})
		all = append(all, typed...)
	}
	for begins := range k.untyped {
		if !met[begins] {
			t.Errorf("%s has no block and no command that begins with %q, which is not typed", name, begins)
		}
	}
	return all
}

// typed types a page.
func (k known) typed(t *testing.T, name string, programs func() (string, error)) {
	t.Helper()
	plan := k.plan(t, name, page.Pages(t, "../..")[name])
	for _, command := range k.needs {
		if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Skipf("%q: %v\n%s", command, err, out)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("a machine of its own needs the rights of root")
	}
	installed := ""
	if k.installed {
		var err error
		if installed, err = programs(); err != nil {
			t.Fatal(err)
		}
	}
	m := mustMachine(t, installed)
	if out, ok := m.do(k.given, building); !ok {
		t.Fatalf("what %s takes for granted cannot be made:\n%s", name, out)
	}
	v := values{}
	for _, s := range plan {
		if k.once(m, s, v); t.Failed() {
			t.Fatalf("%s:%d, as it is written:\n%s", path.Base(name), s.line, s.script)
		}
	}
}

// once types one step, and compares the answer.
func (k known) once(m *machine, s step, v values) {
	m.Helper()
	for begins, ready := range k.terminals {
		if strings.HasPrefix(s.script, begins) {
			k.stays(m, s, ready, v)
			return
		}
	}
	out, ok := m.do(v.fill(s.script), k.limit())
	switch {
	case !ok:
		m.Errorf("it fails; it writes:\n%s", out)
	case s.answered && !v.matches(s.answer, out, k.names):
		m.Errorf("its answer is not that of the page:\n%swant:\n%s", out, s.answer)
	}
}

// stays types a command that does not return.
func (k known) stays(m *machine, s step, ready string, v values) {
	m.Helper()
	at := m.begin(v.fill(s.script))
	ctx, cancel := context.WithTimeout(m.Context(), k.limit())
	defer cancel()
	if err := await.Until(ctx, 10*time.Millisecond, "its answer", func() (bool, error) {
		out := shown(at.text())
		return strings.Contains(out, ready) && (!s.answered || s.answer == "" || v.matches(s.answer, out, k.names)), nil
	}); err != nil {
		m.Errorf("%v:\n%swant:\n%s", err, shown(at.text()), s.answer)
	}
}

// What is not typed is in the pages, and every block of them is a recording or commands.
func TestTable(t *testing.T) {
	all := page.Pages(t, "../..")
	for name, k := range pages {
		for _, s := range k.plan(t, name, all[name]) {
			if strings.TrimSpace(s.script) == "" {
				t.Errorf("%s:%d: nothing is typed", name, s.line)
			}
		}
	}
}

// Each command of these pages can be typed as it is written, and answers as the page says.
func TestPages(all *testing.T) {
	dir := all.TempDir()
	programs := sync.OnceValues(func() (string, error) { return dir, build(all.Context(), dir) })
	for name, k := range pages {
		all.Run(path.Base(name), func(t *testing.T) {
			t.Parallel()
			if !k.installed || k.needs != nil {
				long.Test(t) // it builds programs, too
			}
			k.typed(t, name, programs)
		})
	}
}

// build builds what is installed.
func build(ctx context.Context, dir string) error {
	if _, err := cluster.Build(ctx, dir); err != nil {
		return err
	}
	_, err := cluster.BuildTool(ctx, dir)
	return err
}
