// Package cluster runs real quorate processes on loopback: it starts a cluster,
// kills and restarts its nodes, and queries them about their queues.
package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quorate/quorate/jepsen/internal/await"
)

// StartTimeout bounds the start of a cluster or of a node.
const StartTimeout = 60 * time.Second

// stopTimeout bounds an orderly stop, after which the processes are killed.
const stopTimeout = 25 * time.Second

// poll is the polling interval for states that cannot be observed otherwise.
const poll = 20 * time.Millisecond

// Options describe the cluster to start.
type Options struct {
	Binary string
	Dir    string   // for data and logs
	Nodes  int      // 0: 3
	More   int      // nodes that AddNode will add
	Args   []string // more arguments of "quorate dev"
	// Links gives the cluster links that can be broken, those of its clients among them.
	// Its nodes are then started one by one, and Args must be settings.
	Links bool
	// Packets is like Links, and gives each node a network of its own, so that packets can be
	// lost and reordered. Start fails with ErrNoNamespaces if this machine does not permit that.
	Packets bool
	// Disks gives each node a disk of its own that can be broken, if this machine permits
	// that; see NoDisks. CloseDisks must be called in the end.
	Disks bool
	// Filesystem is that of Disks: xfs, or ext4, also if it is empty.
	Filesystem string
	// Clocks lets SetClock make clocks wrong. It is implied by WrongClocks in Args.
	Clocks bool
	// Awake keeps queues awake whatever the flag says: the nodes may be of a version that lets none sleep.
	Awake bool
	// OpenFiles is the limit of open files of each node that "quorate dev" starts; 0:
	// that of this process.
	OpenFiles int
}

// Node is one server.
type Node struct {
	Number  int // from 1
	AMQP    string
	HTTP    string
	Bus     string // AMQP of programs of Azure Service Bus, if Options.Args say so
	Manage  string // their management
	PID     int
	Command string // shell command that runs the node again

	dir   string
	first string    // Command before the first Use; empty: there was none
	child *exec.Cmd // nil while the process belongs to quorate dev
	ended chan struct{}
	net   *namespace // nil: that of this process
	taken atomic.Bool
}

// TryTake takes the node for one fault, until Release, and reports whether it was free. Only
// who has taken a node starts or ends its process while other faults go on.
func (n *Node) TryTake() bool { return n.taken.CompareAndSwap(false, true) }

// Release gives the node back.
func (n *Node) Release() { n.taken.Store(false) }

// URI returns the address for clients of the node.
func (n *Node) URI() string { return "amqp://guest:guest@" + n.AMQP + "/" }

// Cluster is a set of servers. Methods that change its nodes must not be called concurrently.
type Cluster struct {
	Nodes  []*Node
	Links  *Links        // nil unless Options.Links was set
	Disks  map[int]*Disk // by the numbers of nodes
	Clocks bool          // whether SetClock works

	noDisks error // why there are none

	dir    string
	base   int // AMQP port of the first node
	binary string
	dev    *exec.Cmd
	guard  net.Listener
	done   chan struct{} // closed when dev has ended and its output is read
}

// asleep is of all tests that start clusters.
var asleep = flag.Bool("jepsen.asleep", false, "queues sleep when nothing has happened in them for 200 ms")

// sleepy are the settings for that.
var sleepy = []string{"--set", "raft.idle_after=200", "--set", "raft.awake_target=0"}

// Start starts a cluster with "quorate dev" and waits until every node serves clients.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if o.Nodes == 0 {
		o.Nodes = 3
	}
	base, guard, err := freePorts(o.Nodes + o.More)
	if err != nil {
		return nil, err
	}
	if *asleep && !o.Awake {
		o.Args = slices.Concat(sleepy, o.Args)
	}
	if o.Clocks {
		o.Args = slices.Concat(o.Args, WrongClocks)
	}
	c := &Cluster{dir: o.Dir, base: base, binary: o.Binary, guard: guard, done: make(chan struct{})}
	c.Clocks = slices.Contains(o.Args, WrongClocks[0])
	if err := c.makeDisks(o); err != nil {
		return nil, errors.Join(err, guard.Close(), c.CloseDisks())
	}
	c.dev = exec.Command(o.Binary, "dev", "--nodes", strconv.Itoa(o.Nodes),
		"--base-port", strconv.Itoa(base), "--data-dir", filepath.Join(o.Dir, "data"))
	c.dev.Args = append(c.dev.Args, o.Args...)
	if o.OpenFiles > 0 {
		limited := []string{"-c", fmt.Sprintf(`ulimit -n %d; exec "$0" "$@"`, o.OpenFiles)}
		c.dev = exec.Command("sh", append(limited, c.dev.Args...)...)
	}
	if o.Links || o.Packets {
		err = c.startLinked(ctx, o)
	} else {
		err = c.start(ctx, o.Nodes)
	}
	if err != nil {
		return nil, errors.Join(err, c.lastWords(), c.Stop(), c.CloseDisks())
	}
	return c, nil
}

// at returns the address of a node's listener; see portOffsets.
func (c *Cluster) at(listener, number int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.base+portOffsets[listener]+number-1))
}

// startLinked starts nodes that reach each other through proxies.
func (c *Cluster) startLinked(ctx context.Context, o Options) (err error) {
	ctx, cancel := context.WithTimeout(ctx, StartTimeout)
	defer cancel()
	if err := c.openLinks(o); err != nil {
		return err
	}
	authority, err := NewAuthority(filepath.Join(c.dir, "data", certsFolder))
	if err != nil {
		return err
	}
	for k := 1; k <= o.Nodes; k++ {
		if err := authority.CertifyNode(nodeName(k)); err != nil {
			return err
		}
		words := slices.Concat(c.certificateOf(nodeName(k)), o.Args)
		for to := 1; to <= o.Nodes; to++ {
			words = append(words, fmt.Sprintf("--set=cluster_formation.classic_config.nodes.%d=n%d@%s", to, to, c.Links.address(k, to)))
		}
		n, err := c.newLinked(k, words)
		if err != nil {
			return err
		}
		if err := n.Restart(); err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, n)
	}
	for _, n := range c.Nodes {
		if err := n.AwaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) openLinks(o Options) (err error) {
	if o.Packets {
		var clients []uint16
		for k := range o.Nodes {
			clients = append(clients, uint16(c.base+portOffsets[0]+k))
		}
		c.Links, err = newPacketLinks(o.Nodes, c.base+portOffsets[3], clients...)
		return err
	}
	c.Links, err = newLinks(o.Nodes, c.base+portOffsets[3], func(from, node int) string {
		if from == Clients {
			return c.at(0, node)
		}
		return c.at(3, node)
	})
	return err
}

// newLinked describes a node whose clients, too, reach it through a link.
func (c *Cluster) newLinked(k int, words []string) (*Node, error) {
	p := c.Links.packets
	if p == nil {
		n := c.newNode(k, words...)
		n.AMQP = c.Links.address(Clients, k)
		return n, nil
	}
	_, port, err := net.SplitHostPort(c.at(0, k))
	if err != nil {
		return nil, err
	}
	amqp := net.JoinHostPort(hostAddress(k), port)
	n := c.newNode(k, append(words, "--set=listeners.tcp.default="+amqp, "--set=loopback_users=none", "--set=default_pass=guest", "--set=cluster.listener="+c.Links.address(Clients, k))...)
	n.net = p.hosts[k]
	err = p.forwardTo(p.hosts[Clients], c.at(0, k), amqp)
	for _, listener := range []int{1, 2} { // of those who look on: not disturbed
		err = errors.Join(err, p.forwardTo(n.net, c.at(listener, k), c.at(listener, k)))
	}
	return n, err
}

// nodeName returns the name of a node.
func nodeName(number int) string { return "n" + strconv.Itoa(number) }

// newNode describes a node that is started individually, with more arguments.
func (c *Cluster) newNode(number int, more ...string) *Node {
	name := nodeName(number)
	home := filepath.Join(c.dir, "data", name)
	n := &Node{Number: number, AMQP: c.at(0, number), HTTP: c.at(1, number), dir: c.dir}
	for _, word := range append([]string{
		c.binary, "server", "--node-name", name, "--data-dir", home, "--set=listeners.tcp.default=" + n.AMQP,
		"--set=management.tcp.listener=" + n.HTTP, "--set=prometheus.tcp.listener=" + c.at(2, number),
		"--set=cluster.listener=" + c.at(3, number), "--set=log.file=" + filepath.Join(home, "quorate.log"),
	}, more...) {
		n.Command += "'" + word + "' "
	}
	return n
}

func (c *Cluster) start(ctx context.Context, nodes int) error {
	ctx, cancel := context.WithTimeout(ctx, StartTimeout)
	defer cancel()
	log, err := os.Create(filepath.Join(c.dir, "dev.log"))
	if err != nil {
		return err
	}
	out, err := c.dev.StdoutPipe()
	if err != nil {
		return err
	}
	c.dev.Stderr = log
	if err := launch(c.dev, syscall.SIGTERM, nil); err != nil {
		c.dev.Process = nil
		return err
	}
	lines := make(chan string, 4*nodes+16)
	go c.read(io.TeeReader(out, log), lines)
	if err := c.announced(ctx, lines, nodes); err != nil {
		tail, _ := os.ReadFile(log.Name())
		return fmt.Errorf("quorate dev: %w\n%s", err, tail[max(0, len(tail)-4000):])
	}
	for _, n := range c.Nodes {
		if err := n.AwaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// read passes on the first lines of dev's output, and discards the rest so that dev
// never blocks on its output.
func (c *Cluster) read(out io.Reader, lines chan<- string) {
	s := bufio.NewScanner(out)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		select {
		case lines <- s.Text():
		default:
		}
	}
	_, _ = io.Copy(io.Discard, out)
	_ = c.dev.Wait()
	close(lines)
	close(c.done)
}

var (
	commandLine = regexp.MustCompile(`^node (\d+) command: (.+)$`)
	readyLine   = regexp.MustCompile(`^node (\d+) ready amqp=(\S+) http=(\S+)(?: servicebus=(\S+) management=(\S+))? pid=(\d+)$`)
)

// announced reads dev's output until the cluster is ready.
func (c *Cluster) announced(ctx context.Context, lines <-chan string, nodes int) error {
	commands := map[string]string{}
	for {
		var line string
		var ok bool
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d nodes ready: %w", len(c.Nodes), nodes, ctx.Err())
		case line, ok = <-lines:
		}
		if !ok {
			return errors.New("ended before the cluster was ready")
		}
		if m := commandLine.FindStringSubmatch(line); m != nil {
			commands[m[1]] = m[2]
		} else if m := readyLine.FindStringSubmatch(line); m != nil {
			number, _ := strconv.Atoi(m[1])
			pid, _ := strconv.Atoi(m[6])
			c.Nodes = append(c.Nodes, &Node{
				Number: number, AMQP: m[2], HTTP: m[3], Bus: m[4], Manage: m[5], PID: pid, Command: commands[m[1]], dir: c.dir,
			})
		} else if line == "cluster ready" {
			return c.complete(nodes)
		}
	}
}

func (c *Cluster) complete(nodes int) error {
	if len(c.Nodes) != nodes {
		return fmt.Errorf("ready with %d of %d nodes announced", len(c.Nodes), nodes)
	}
	for _, n := range c.Nodes {
		if n.Command == "" {
			return fmt.Errorf("no command announced for node %d", n.Number)
		}
	}
	return nil
}

// AddNode starts one more node, which joins the cluster through its first one,
// and waits until it serves clients. Options.More says how many there can be.
func (c *Cluster) AddNode(ctx context.Context) (*Node, error) {
	name := nodeName(len(c.Nodes) + 1)
	authority, err := c.Authority()
	if err != nil {
		return nil, err
	}
	if err := authority.CertifyNode(name); err != nil {
		return nil, err
	}
	token, err := c.JoinToken(ctx)
	if err != nil {
		return nil, err
	}
	n := c.newNode(len(c.Nodes)+1, append(c.certificateOf(name), "--set=cluster_formation.join="+c.at(3, 1), "--set=cluster_formation.token_file="+token)...)
	if err := n.Restart(); err != nil {
		return nil, err
	}
	c.Nodes = append(c.Nodes, n)
	return n, n.AwaitReady(ctx)
}

// JoinToken makes the first node create a token, and returns a file that contains it.
func (c *Cluster) JoinToken(ctx context.Context) (path string, err error) {
	var made struct {
		Token string `json:"token"`
	}
	if err := c.Nodes[0].Call(ctx, "POST", "/api/quorate/tokens", map[string]any{"ttl": time.Hour.Milliseconds()}, &made); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(c.dir, "token-*")
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(made.Token)
	return f.Name(), errors.Join(err, f.Close())
}

// Join starts a node without a certificate, which joins through the first one with a
// token. It does not wait until the node is admitted.
func (c *Cluster) Join(name, token string) (*Node, error) {
	number, err := strconv.Atoi(strings.TrimPrefix(name, "n"))
	if err != nil {
		return nil, err
	}
	path := filepath.Join(c.dir, "token-"+name)
	if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
		return nil, err
	}
	n := c.newNode(number, "--set=cluster_formation.join="+c.at(3, 1), "--set=cluster_formation.token_file="+path)
	return n, n.Restart()
}

// Said reports whether the node's log contains a text.
func (n *Node) Said(text string) bool {
	log, err := os.ReadFile(filepath.Join(n.dir, "data", nodeName(n.Number), "quorate.log"))
	return err == nil && strings.Contains(string(log), text)
}

// SaidLine reports whether a line of the node's log contains all these words.
func (n *Node) SaidLine(words ...string) bool {
	log, err := os.ReadFile(filepath.Join(n.DataDir(), "quorate.log"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(log)) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			return true
		}
	}
	return false
}

// URIs are the addresses of all nodes, in their order.
func (c *Cluster) URIs() []string {
	uris := make([]string, len(c.Nodes))
	for i, n := range c.Nodes {
		uris[i] = n.URI()
	}
	return uris
}

// AwaitReady waits until the node serves clients.
func (n *Node) AwaitReady(ctx context.Context) error {
	return await.Until(ctx, poll, fmt.Sprintf("node %d to serve clients", n.Number), func() (bool, error) {
		err := n.Ready(ctx)
		return err == nil, err
	})
}

// Kill ends the node's process with SIGKILL and waits until it is gone.
func (n *Node) Kill(ctx context.Context) error {
	return n.end(ctx, syscall.SIGKILL)
}

// Shutdown ends the node's process in order and waits until it is gone.
func (n *Node) Shutdown(ctx context.Context) error {
	return n.end(ctx, syscall.SIGTERM)
}

func (n *Node) end(ctx context.Context, s syscall.Signal) error {
	if err := n.Signal(s); err != nil {
		return err
	}
	err := await.Until(ctx, poll/4, fmt.Sprintf("process %d to end", n.PID), func() (bool, error) {
		return !n.Alive(), nil
	})
	if err == nil && n.ended != nil {
		<-n.ended
	}
	return err
}

// Restart runs the node's announced command. Its output goes to a file of the
// cluster's folder. The node need not be ready on return.
func (n *Node) Restart() error {
	log, err := os.OpenFile(filepath.Join(n.dir, fmt.Sprintf("node%d-restarted.log", n.Number)),
		os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("sh", "-c", "exec "+n.Command)
	cmd.Stdout, cmd.Stderr = log, log
	if err := launch(cmd, syscall.SIGKILL, n.net); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	n.child, n.ended, n.PID = cmd, ended, cmd.Process.Pid
	return nil
}

// abort ends a process that does not stop, and makes it dump its goroutines to its
// log.
func (n *Node) abort() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if n.end(ctx, syscall.SIGQUIT) == nil {
		return nil
	}
	return n.Signal(syscall.SIGKILL)
}

// Stop ends all processes, in order if possible. It reports nodes that had died
// before, other than by Kill or Shutdown.
func (c *Cluster) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var errs []error
	if c.Links != nil {
		errs = append(errs, c.Links.Heal())
	}
	for _, d := range c.Disks {
		errs = append(errs, d.Heal())
	}
	for _, n := range c.Nodes {
		if !n.Alive() {
			errs = append(errs, fmt.Errorf("node %d had ended by itself", n.Number))
			continue
		}
		_ = n.Signal(syscall.SIGCONT)
		errs = append(errs, n.Signal(syscall.SIGTERM))
	}
	if c.dev.Process != nil {
		_ = c.dev.Process.Signal(syscall.SIGTERM)
	}
	for _, n := range c.Nodes {
		if err := await.Until(ctx, poll, "a clean stop", func() (bool, error) { return !n.Alive(), nil }); err != nil {
			errs = append(errs, fmt.Errorf("node %d: %w", n.Number, err), n.abort())
		}
	}
	if c.dev.Process != nil {
		select {
		case <-c.done:
		case <-ctx.Done():
			errs = append(errs, c.dev.Process.Kill())
			<-c.done
		}
	}
	if c.Links != nil {
		c.Links.close()
	}
	return errors.Join(append(errs, c.guard.Close())...)
}

const (
	// watchEvery is the pause between two questions to a node. It is watchShare times as
	// long as the answer took, but no more than watchPause, if that is longer: a node
	// with very many queues is not kept busy.
	watchEvery   = 250 * time.Millisecond
	watchShare   = 4
	watchPause   = 2 * time.Second
	watchTimeout = time.Second
)

// WatchLeaders asks a node again and again which queues of the vhost "/" it leads, in
// which terms, until ctx ends, and passes that to seen, the same leadership each time
// anew. A leader for less than a quarter of a second may be missed; a term tells how
// many elections there were. It may run beside the other methods.
func WatchLeaders(ctx context.Context, n *Node, seen func(queue string, node int, term uint64)) {
	watched := &Node{Number: n.Number, HTTP: n.HTTP} // n changes when its process does
	for {
		began := time.Now()
		pause := watchEvery
		if all, err := unhashed(ctx, watched); err == nil {
			for _, r := range all {
				if r.Leader && r.Vhost == "/" {
					seen(r.Name, n.Number, r.Term)
				}
			}
			pause = max(pause, min(watchShare*time.Since(began), watchPause))
		}
		wait := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		}
	}
}

// unhashed asks a node about its replicas, but not for the hashes of their states.
func unhashed(ctx context.Context, n *Node) (all []Replica, err error) {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	err = n.Call(ctx, http.MethodGet, "/api/quorate/replicas?hash=false", nil, &all)
	return all, err
}

// logs lists the files with the output of the nodes.
func (c *Cluster) logs() []string {
	var all []string
	for _, pattern := range []string{"*.log", "data/*.log", "data/*/*.log"} {
		found, _ := filepath.Glob(filepath.Join(c.dir, pattern)) // the patterns are well-formed
		all = append(all, found...)
	}
	return all
}

// complaint matches lines that the log of a healthy server does not contain.
var complaint = regexp.MustCompile(`^(panic: |fatal error: |WARNING: DATA RACE)`)

// Complaints returns the log lines that report a crash or a data race.
func (c *Cluster) Complaints() []string {
	var found []string
	for _, path := range c.logs() {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for line := range bytes.Lines(text) {
			if complaint.Match(line) {
				found = append(found, fmt.Sprintf("%s: %.300s", filepath.Base(path), bytes.TrimSpace(line)))
			}
		}
	}
	return found
}

// lastWords returns how the logs of nodes end that have ended by themselves; nil: none has.
func (c *Cluster) lastWords() error {
	var errs []error
	for _, n := range c.Nodes {
		if n.Alive() {
			continue
		}
		for _, path := range []string{filepath.Join(n.DataDir(), "quorate.log"), filepath.Join(c.dir, fmt.Sprintf("node%d-restarted.log", n.Number))} {
			if text, err := os.ReadFile(path); err == nil && len(text) > 0 {
				errs = append(errs, fmt.Errorf("node %d has ended:\n%s", n.Number, text[max(0, len(text)-1000):]))
			}
		}
	}
	return errors.Join(errs...)
}

// Logged counts the log lines that contain all these words.
func (c *Cluster) Logged(words ...string) (n int) {
	for _, path := range c.logs() {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				n++
			}
		}
	}
	return n
}

// CollectLogs copies every log of the cluster into dir.
func (c *Cluster) CollectLogs(dir string) error {
	var errs []error
	for _, path := range c.logs() {
		text, err := os.ReadFile(path)
		if err == nil {
			name := filepath.Base(path)
			if parent := filepath.Dir(path); parent != c.dir {
				name = filepath.Base(parent) + "-" + name
			}
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
