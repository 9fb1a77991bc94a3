package attack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/long"
)

// mustNotStart runs a server that is to refuse, and returns what it says.
func mustNotStart(t *testing.T, env []string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cluster.StartTimeout)
	defer cancel()
	c := exec.CommandContext(ctx, server, append([]string{"server"}, args...)...)
	c.Env = append(os.Environ(), env...)
	out, err := c.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("it ends with %v: %s", err, out)
	}
	return string(out)
}

// nowhere is where a server listens that must not get so far.
func nowhere(dir string) []string {
	args := []string{"--data-dir", filepath.Join(dir, "data")}
	for _, l := range []string{"listeners.tcp.default", "management.tcp.listener", "prometheus.tcp.listener", "cluster.listener"} {
		args = append(args, "--set", l+"=127.0.0.1:0")
	}
	return args
}

// A node does not run with what other users of its host can read or change, if
// that matters.
func TestFilesOfOthers(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		mode fs.FileMode
		says string
	}{
		"settings that everybody can write":                   {"cluster_name = c\n", 0o666, "writable by every user of this host (-rw-rw-rw-)"},
		"settings that everybody but their group can write":   {"cluster_name = c\n", 0o606, "writable by every user of this host (-rw----rw-)"},
		"settings with a password that everybody can read":    {"default_pass = p\n", 0o644, "contains a secret and is readable by every user of this host (-rw-r--r--)"},
		"settings with a password that everybody can write":   {"default_pass = p\n", 0o602, "writable by every user of this host (-rw-----w-)"},
		"settings with a password between others, with blank": {"cluster_name = c\n  default_pass=p\nnode_name = n1\n", 0o604, "contains a secret and is readable by every user of this host (-rw----r--)"},
	} {
		attack(t, "files", name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "quorate.conf")
			mustWriteFile(t, file, c.text, c.mode)
			if out := mustNotStart(t, nil, append(nowhere(dir), "--config", file)...); !strings.Contains(out, c.says) {
				t.Errorf("it says %s", out)
			}
			if _, err := os.Stat(filepath.Join(dir, "data")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("there is data: %v", err)
			}
		})
	}
	for _, listener := range []string{"listeners.ssl.default=127.0.0.1:0", "management.ssl.port=0", "prometheus.ssl.port=0"} {
		key, _, _ := strings.Cut(listener, "=")
		attack(t, "files", "a key that everybody can read, for "+key, func(t *testing.T) {
			dir := t.TempDir()
			cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
			mustWritePEM(t, newIssuer(t, "authority").issue(certificateFor("node")), cert, key)
			if err := os.Chmod(key, 0o644); err != nil {
				t.Fatal(err)
			}
			out := mustNotStart(t, nil, append(nowhere(dir), "--set", listener, "--set", "ssl_options.certfile="+cert, "--set", "ssl_options.keyfile="+key)...)
			if !strings.Contains(out, key+": contains a secret and is readable by every user of this host") {
				t.Errorf("it says %s", out)
			}
		})
	}
	attack(t, "files", "a folder that is everybody's", func(t *testing.T) {
		dir := t.TempDir()
		data := filepath.Join(dir, "data")
		if err := os.Mkdir(data, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(data, 0o777|fs.ModeSticky); err != nil {
			t.Fatal(err)
		}
		if out := mustNotStart(t, nil, nowhere(dir)...); !strings.Contains(out, "is writable by everybody") {
			t.Errorf("it says %s", out)
		}
	})
}

func mustWriteFile(t *testing.T, path, text string, mode fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// What users run has no switch that breaks a promise.
func TestNoTestOptions(t *testing.T) {
	for name, c := range map[string]struct {
		env  []string
		args []string
		says string
	}{
		"a flag for tests":                        {nil, []string{"--unsafe-test-options"}, "flag provided but not defined: -unsafe-test-options"},
		"a setting for tests":                     {nil, []string{"--set", "unsafe.test_clock_file=clock"}, "unknown setting unsafe.test_clock_file"},
		"a setting for tests, in the environment": {[]string{"QUORATE_UNSAFE_TEST_CLOCK_FILE=clock"}, nil, "no such setting"},
		"a version of TLS that is broken":         {nil, []string{"--set", "ssl_options.versions=tlsv1.1"}, `"tlsv1.1" is not one of tlsv1.2, tlsv1.3`},
	} {
		attack(t, "files", name, func(t *testing.T) {
			if out := mustNotStart(t, c.env, append(nowhere(t.TempDir()), c.args...)...); !strings.Contains(out, c.says) {
				t.Errorf("it says %s", out)
			}
		})
	}
}

// openToOthers lists what users other than the owner can do something with.
func openToOthers(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode()&0o077 != 0 {
			all = append(all, fmt.Sprintf("%s %v", path, info.Mode()))
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Data is its owner's alone, also if it was not.
func TestDataOfANode(t *testing.T) {
	long.Test(t)
	t.Parallel()
	c := mustStart(t, cluster.Options{Nodes: 1})
	n, ctx := c.Nodes[0], t.Context()
	attack(t, "files", "another user looks at data", func(t *testing.T) {
		if all := openToOthers(t, n.DataDir()); len(all) > 0 {
			t.Errorf("others can get at %q", all)
		}
	})
	attack(t, "files", "another user looks at memory", func(t *testing.T) {
		for file, line := range map[string]string{"limits": "Max core file size        0                    0 ", "status": "Umask:\t0077\n"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", n.PID, file))
			if err != nil || !bytes.Contains(text, []byte(line)) {
				t.Errorf("%s has no %q: %v", file, line, err)
			}
		}
	})
	attack(t, "files", "names that are paths", func(t *testing.T) {
		names := []string{"../../escaped", "/tmp/escaped", "escaped\x00", "escaped/../../escaped", strings.Repeat("/", 200) + "escaped"}
		ch, end := mustChannel(t, n, "")
		defer end()
		for _, name := range names {
			if err := n.Call(ctx, "PUT", "/api/vhosts/"+url.PathEscape(name), nil, nil); err != nil {
				t.Error(err)
			}
			if _, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
				t.Error(err)
			}
		}
		err := filepath.WalkDir(filepath.Dir(filepath.Dir(n.DataDir())), func(path string, _ fs.DirEntry, err error) error {
			if strings.Contains(path, "escaped") {
				t.Errorf("there is a file %q", path)
			}
			return nil // whatever err: files come and go
		})
		if err != nil {
			t.Error(err)
		}
	})
	attack(t, "files", "data that was left open", func(t *testing.T) {
		if err := n.Shutdown(ctx); err != nil {
			t.Fatal(err)
		}
		err := filepath.WalkDir(n.DataDir(), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() {
				return os.Chmod(path, 0o755)
			}
			return os.Chmod(path, 0o644)
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Restart(); err != nil {
			t.Fatal(err)
		}
		within, cancel := context.WithTimeout(ctx, cluster.StartTimeout)
		defer cancel()
		if err := n.AwaitReady(within); err != nil {
			t.Fatal(err)
		}
		if all := openToOthers(t, n.DataDir()); len(all) > 0 {
			t.Errorf("others can get at %q", all)
		}
		if c.Logged("data was accessible to other users of this host") == 0 {
			t.Error("nothing is told of it")
		}
	})
}
