package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// ErrNoModule means that no folder above the working directory has a go.mod.
var ErrNoModule = errors.New("go.mod not found")

// Root returns the folder of the module to which the working directory belongs.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", ErrNoModule
		}
		dir = up
	}
}

// Build builds the server, with the options for tests, into dir and returns the path
// of the binary.
func Build(ctx context.Context, dir string) (string, error) {
	return build(ctx, dir, "quorate", testOptions...)
}

// testOptions are the build options for tests; see WrongClocks.
var testOptions = []string{"-tags", "testoptions"}

// BuildRelease is like Build, for the server that users run.
func BuildRelease(ctx context.Context, dir string) (string, error) { return build(ctx, dir, "quorate") }

// ErrNoRevision means that the checkout has no such commit or tag, or is none of git.
var ErrNoRevision = errors.New("the checkout has no such revision")

// BuildRevision is like BuildRelease, for the source of a commit or a tag. The source is
// written into dir, too.
func BuildRevision(ctx context.Context, dir, revision string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	archive := filepath.Join(dir, "source.tar")
	git := exec.CommandContext(ctx, "git", "archive", "--format=tar", "--output="+archive, revision+"^{commit}")
	git.Dir = root
	if out, err := git.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s: %w\n%s", ErrNoRevision, revision, err, out)
	}
	source := filepath.Join(dir, "source")
	if err := os.Mkdir(source, 0o755); err != nil {
		return "", err
	}
	if out, err := exec.CommandContext(ctx, "tar", "-x", "-f", archive, "-C", source).CombinedOutput(); err != nil {
		return "", fmt.Errorf("tar: %w\n%s", err, out)
	}
	return buildIn(ctx, source, dir, "quorate")
}

// Change is a deliberate fault in the source: a text that occurs once in a file, and
// its replacement.
type Change struct {
	File     string // from the module's root
	Old, New string
}

// Apply returns the file and its changed text.
func (c Change) Apply() (file, text string, err error) {
	texts := map[string]string{}
	err = c.apply(texts)
	for file, text = range texts {
	}
	return file, text, err
}

// apply makes the change in the text of its file, which may have changes already.
func (c Change) apply(texts map[string]string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	file := filepath.Join(root, filepath.FromSlash(c.File))
	text, changed := texts[file]
	if !changed {
		source, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		text = string(source)
	}
	if n := strings.Count(text, c.Old); n != 1 {
		return fmt.Errorf("%s has %q %d times", c.File, c.Old, n)
	}
	texts[file] = strings.Replace(text, c.Old, c.New, 1)
	return nil
}

// Overlay writes the changed file into dir, and a list that makes the compiler use it
// (-overlay), whose path it returns. name distinguishes changes in one folder.
func (c Change) Overlay(dir, name string) (string, error) { return Overlay(dir, name, c) }

// Overlay is like Change.Overlay, for several changes at once.
func Overlay(dir, name string, changes ...Change) (string, error) {
	texts, replace := map[string]string{}, map[string]string{}
	for _, c := range changes {
		if err := c.apply(texts); err != nil {
			return "", err
		}
	}
	for file, text := range texts {
		changed := filepath.Join(dir, fmt.Sprintf("%s-%d.go", name, len(replace)))
		if err := os.WriteFile(changed, []byte(text), 0o644); err != nil {
			return "", err
		}
		replace[file] = changed
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, name+".json")
	return overlay, os.WriteFile(overlay, list, 0o644)
}

// BuildChanged is like Build, with a change that leaves the source tree untouched.
func BuildChanged(ctx context.Context, dir string, c Change) (string, error) {
	overlay, err := c.Overlay(dir, "changed")
	if err != nil {
		return "", err
	}
	return build(ctx, dir, "quorate", append([]string{"-overlay", overlay}, testOptions...)...)
}

// BuildTool builds the command line tool into dir and returns its path.
func BuildTool(ctx context.Context, dir string) (string, error) {
	return build(ctx, dir, "quoratectl")
}

func build(ctx context.Context, dir, name string, flags ...string) (string, error) {
	root, err := Root()
	if err == nil {
		err = Depends(root, Sources...)
	}
	if err != nil {
		return "", err
	}
	return buildIn(ctx, root, dir, name, flags...)
}

// Depends makes the result of a test depend on files, and on all below folders, of the checkout. The
// go command sees what a test's process opens, and not what programs read that it starts; without
// this it would take an earlier result for that of changed sources.
func Depends(root string, paths ...string) error {
	for _, path := range paths {
		if err := filepath.WalkDir(filepath.Join(root, path), func(path string, _ os.DirEntry, err error) error {
			return err // a folder that is read counts with the names, sizes and times of its files
		}); err != nil {
			return err
		}
	}
	return nil
}

// Sources are what programs are built from.
var Sources = []string{"go.mod", "go.sum", "amqp", "cluster", "cmd", "fsm", "proto"}

// buildIn builds a program from the module in root into dir.
//
// Linking takes seconds, and many tests want the same program. So it is linked in a folder that
// all tests of a checkout share, where the go command sees that it is up to date, and dir gets one
// more name of that file. A later build replaces the file there, and leaves that in dir as it is.
func buildIn(ctx context.Context, root, dir, name string, flags ...string) (string, error) {
	binary := filepath.Join(dir, name)
	if changed := strings.Join(append(flags, os.Getenv("GOFLAGS")), " "); !strings.Contains(changed, "-overlay") {
		if shareBuild(ctx, root, binary, name, flags...) == nil {
			return binary, nil
		}
	}
	return binary, goBuild(ctx, root, binary, name, flags...)
}

// shareBuild builds a program in the shared folder and links it to a path. It fails if that is on
// another disk, or the checkout cannot be written.
func shareBuild(ctx context.Context, root, binary, name string, flags ...string) error {
	shared := filepath.Join(root, "bin", "jepsen"+strings.Join(flags, ""))
	if err := os.MkdirAll(shared, 0o755); err != nil {
		return err
	}
	lock, err := os.Create(filepath.Join(shared, name+".lock"))
	if err != nil {
		return err
	}
	defer lock.Close() // which unlocks it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	if err := goBuild(ctx, root, filepath.Join(shared, name), name, flags...); err != nil {
		return err
	}
	return os.Link(filepath.Join(shared, name), binary)
}

func goBuild(ctx context.Context, root, binary, name string, flags ...string) error {
	args := append([]string{"build", "-o", binary}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/"+name)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build ./cmd/%s: %w\n%s", name, err, out)
	}
	return nil
}
