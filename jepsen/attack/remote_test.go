package attack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/internal/long"
)

// elsewhere is an address that is not on loopback.
const elsewhere = "10.77.0.1"

// TestRemoteGuest: who may come from loopback only is judged by where they come
// from, not by where they come to, nor by what they say.
func TestRemoteGuest(t *testing.T) {
	long.Test(t)
	attack(t, "login", "guest from another host", func(t *testing.T) {
		done := make(chan error, 1)
		go func() { done <- inNetwork(func() error { return remoteGuest(t.Context(), t.TempDir()) }) }()
		err := <-done
		if errors.Is(err, syscall.EPERM) {
			t.Skip("a network of one's own takes the right to make one")
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// inNetwork calls do in a network that has nothing but loopback, and another
// address on it. The thread of the caller's goroutine ends with it.
func inNetwork(do func() error) error {
	runtime.LockOSThread()
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		return err
	}
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(s)
	request := func(what uintptr, name string, value ...byte) error {
		var r [40]byte // struct ifreq
		copy(r[:16], name)
		copy(r[16:], value)
		if _, _, err := syscall.Syscall(syscall.SYS_IOCTL, uintptr(s), what, uintptr(unsafe.Pointer(&r))); err != 0 {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
	if err := request(syscall.SIOCSIFFLAGS, "lo", syscall.IFF_UP|syscall.IFF_RUNNING); err != nil {
		return err
	}
	if err := request(syscall.SIOCSIFADDR, "lo:1", append([]byte{syscall.AF_INET, 0, 0, 0}, net.ParseIP(elsewhere).To4()...)...); err != nil {
		return err
	}
	return do()
}

// remoteGuest runs a node that listens at every address, and comes to it as guest.
func remoteGuest(ctx context.Context, dir string) (wrong error) {
	node := exec.CommandContext(ctx, server, "server", "--data-dir", filepath.Join(dir, "data"),
		"--set", "listeners.tcp.default=5672", "--set", "management.tcp.listener=:15672", "--set", "prometheus.tcp.listener=127.0.0.1:0", "--set", "cluster.listener=127.0.0.1:0")
	var said bytes.Buffer
	node.Stderr = &said
	if err := node.Start(); err != nil {
		return err
	}
	defer func() {
		_ = node.Process.Signal(syscall.SIGTERM)
		if err := node.Wait(); err != nil {
			wrong = errors.Join(wrong, err)
		}
		if wrong != nil {
			wrong = fmt.Errorf("%w\nthe node: %s", wrong, &said)
		}
	}()
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := await.Until(within, 20*time.Millisecond, "a node", func() (bool, error) {
		_, err := guestLogin(ctx, "127.0.0.1", "127.0.0.1:5672")
		return err == nil, err
	}); err != nil {
		return err
	}
	for _, c := range []struct{ from, to, want string }{
		{"127.0.0.1", "127.0.0.1:5672", "tune"},
		{"127.1.2.3", "127.0.0.1:5672", "tune"}, // the node sees ::ffff:127.1.2.3
		{"::1", "[::1]:5672", "tune"},
		{elsewhere, elsewhere + ":5672", refusedLogin("PLAIN")},
		{elsewhere, "127.0.0.1:5672", refusedLogin("PLAIN")},
	} {
		if got, err := guestLogin(ctx, c.from, c.to); err != nil || got != c.want {
			wrong = errors.Join(wrong, fmt.Errorf("from %s to %s: %q, %v, want %q", c.from, c.to, got, err, c.want))
		}
	}
	for from, want := range map[string]int{elsewhere: http.StatusUnauthorized, "127.0.0.1": http.StatusOK} {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:15672/api/whoami", nil)
		if err != nil {
			return err
		}
		r.SetBasicAuth("guest", "guest")
		r.Header.Set("X-Forwarded-For", "127.0.0.1")
		status, err := ask(r, from)
		if err != nil || status != want {
			wrong = errors.Join(wrong, fmt.Errorf("by HTTP from %s: %d, %v, want %d", from, status, err, want))
		}
	}
	return wrong
}

// guestLogin is what guest is told after start-ok.
func guestLogin(ctx context.Context, from, to string) (string, error) {
	r, err := client.DialFrom(ctx, from, to)
	if err != nil {
		return "", err
	}
	defer r.Close()
	if _, err := r.Start("PLAIN", plain("guest", "guest"), "authentication_failure_close"); err != nil {
		return "", err
	}
	_, err = r.Expect(10<<16 | 30)
	var closed *client.Closed
	if errors.As(err, &closed) {
		return closed.Error(), nil
	}
	return "tune", err
}

// ask makes a request from an address by this goroutine alone, whose thread has
// a network of its own.
func ask(r *http.Request, from string) (status int, err error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: patience}
	k, err := d.DialContext(r.Context(), "tcp", r.URL.Host)
	if err != nil {
		return 0, err
	}
	defer k.Close()
	if err := r.Write(k); err != nil {
		return 0, err
	}
	var line string
	if _, err := fmt.Fscanf(k, "HTTP/1.1 %d %s", &status, &line); err != nil && !strings.Contains(err.Error(), "newline") {
		return status, err
	}
	return status, nil
}
