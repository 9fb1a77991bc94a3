package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strconv"
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

// Offsets of a node's listeners from the base port: AMQP, HTTP, metrics, peers.
var portOffsets = []int{0, 10000, 10020, 20000}

// guardOffset is the offset of a port that no node uses. The process that listens on
// it owns the block.
const guardOffset = 10039

// Base ports are drawn from [portsFrom, portsTo). With the largest offset they stay
// below the system's range of ephemeral ports. Blocks are blockSize apart, so that no port
// is in two of them: whoever looks for free ones tries no port of a cluster that runs.
const portsFrom, portsTo, blockSize = 5700, 12700, 40

// Ports of other programs than nodes are drawn from [othersFrom, othersTo), where no node's are, and which is
// below that range, too: a program gets its own again after a restart.
const othersFrom, othersTo = 22_800, 25_600

// ErrNoPorts means that no block of free ports was found.
var ErrNoPorts = errors.New("no block of free ports on loopback")

// Ports finds so many ports for other programs than nodes, on which nobody listens.
func Ports(n int) (ports []int, err error) {
	for range 100 * n {
		port := othersFrom + rand.IntN(othersTo-othersFrom)
		l := listen(port)
		if l == nil {
			continue
		}
		defer l.Close() // when all are found, so that they differ
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, ErrNoPorts
}

// freePorts finds a base port for a cluster of that many nodes. The block is reserved
// until guard is closed.
func freePorts(nodes int) (base int, guard net.Listener, err error) {
	for range 50 {
		base = portsFrom + blockSize*rand.IntN((portsTo-portsFrom)/blockSize)
		if guard = listen(base + guardOffset); guard == nil {
			continue
		}
		if blockFree(base, nodes) {
			return base, guard, nil
		}
		_ = guard.Close()
	}
	return 0, nil, ErrNoPorts
}

func blockFree(base, nodes int) bool {
	for _, offset := range portOffsets {
		for k := range nodes {
			l := listen(base + offset + k)
			if l == nil {
				return false
			}
			_ = l.Close()
		}
	}
	return true
}

// listen returns nil if the port is taken.
func listen(port int) net.Listener {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil
	}
	return l
}
