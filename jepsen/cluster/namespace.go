package cluster

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoNamespaces means that this machine does not permit network namespaces of a test's own.
var ErrNoNamespaces = errors.New("no network namespaces: that needs the rights of root and /dev/net/tun")

// namespace is a network of one host, with a loopback device of its own. All packets to
// other hosts go to its tunnel, and come from there.
type namespace struct {
	net    *os.File
	tunnel *os.File
}

// newNamespace makes a namespace with an address, in a network of 256.
func newNamespace(address string) (n *namespace, err error) {
	if os.Geteuid() != 0 {
		return nil, ErrNoNamespaces
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread is not used again: it ends with the goroutine
		n, err = makeNamespace(address)
		done <- err
	}()
	if err := <-done; err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrNoNamespaces, err)
	}
	return n, nil
}

// makeNamespace moves the calling thread into a namespace.
func makeNamespace(address string) (*namespace, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	self, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	n := &namespace{net: self}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(err, n.close())
	}
	if err := errors.Join(raise("lo", ""), attach(fd), raise(tunnelName, address), unix.SetNonblock(fd, true)); err != nil {
		return nil, errors.Join(err, unix.Close(fd), n.close())
	}
	n.tunnel = os.NewFile(uintptr(fd), tunnelName)
	return n, nil
}

// tunnelName is the name of the device.
const tunnelName = "tun0"

// attach makes a file the other end of a new device.
func attach(fd int) error {
	request, err := unix.NewIfreq(tunnelName)
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	return unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
}

// raise gives a device an address, unless it is empty, and switches it on.
func raise(device, address string) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	request, err := unix.NewIfreq(device)
	if err != nil {
		return err
	}
	if address != "" {
		set := func(what uint, bytes net.IP) error {
			return errors.Join(request.SetInet4Addr(bytes), unix.IoctlIfreq(s, what, request))
		}
		if err := set(unix.SIOCSIFADDR, net.ParseIP(address).To4()); err != nil {
			return err
		}
		if err := set(unix.SIOCSIFNETMASK, net.IP{255, 255, 255, 0}); err != nil {
			return err
		}
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, request)
}

func (n *namespace) close() error {
	err := n.net.Close()
	if n.tunnel != nil {
		err = errors.Join(err, n.tunnel.Close())
	}
	return err
}

// within calls f on a thread that is in the namespace; the sockets that f opens stay there.
// Without a namespace it just calls f.
func (n *namespace) within(f func() error) error {
	if n == nil {
		return f()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread is not used again
		if err := unix.Setns(int(n.net.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter a network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// dial connects to an address, from within the namespace.
func (n *namespace) dial(address string) (c net.Conn, err error) {
	err = n.within(func() (err error) {
		c, err = net.DialTimeout("tcp", address, 5*time.Second)
		return err
	})
	return c, err
}

// enter moves the calling thread, which is locked, into the namespace; what it returns moves it
// back. Without a namespace it does nothing.
func (n *namespace) enter() (leave func(), err error) {
	if n == nil {
		return func() {}, nil
	}
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	if err := unix.Setns(int(n.net.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, errors.Join(err, home.Close())
	}
	return func() {
		if err := errors.Join(unix.Setns(int(home.Fd()), unix.CLONE_NEWNET), home.Close()); err != nil {
			panic(err) // all that this thread starts would be in the wrong network
		}
	}, nil
}
