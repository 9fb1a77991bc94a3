package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quorate/quorate/cluster/certs"
)

// Port offsets of a development cluster from its base port.
const (
	devHTTP    = 10000
	devMetrics = 10020
	devPeers   = 20000
)

// Offsets of a cluster that serves programs of Azure Service Bus at its base port: that of their management, which is
// 5300 for 5672, and that of other clients of AMQP. The key is that of the service's emulator.
const (
	devBus    = 5300 - 5672
	devOthers = 100
	devBusKey = "SAS_KEY_VALUE"
)

// devReady bounds how long a development cluster may take to start.
const devReady = 60 * time.Second

// devNode is one child process.
type devNode struct {
	number  int
	args    []string
	process *exec.Cmd
	ended   chan struct{}
	amqp    string
	http    string
	bus     string // management by programs of Azure Service Bus; empty: none
	busAMQP string // their AMQP

	home     string // folder of its data, its settings and its log
	settings [][2]string
}

func devCommand(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("quorate dev", flag.ContinueOnError)
	flags.SetOutput(out)
	count := flags.Int("nodes", 3, "`number` of nodes, 1 to 7")
	dataDir := flags.String("data-dir", "data", "`folder` of the nodes' data")
	base := flags.Int("base-port", 5672, "AMQP `port` of the first node")
	detach := flags.Bool("detach", false, "return when the cluster is ready and leave it running; what nodes write besides their logs is in DIR/nK/stderr.log")
	pidFile := flags.String("pid-file", "", "`file` for the nodes' process ids, one a line")
	serviceBus := flags.Bool("service-bus", false, "serve programs of Azure Service Bus at the base port, their management 372 ports below, and other clients of AMQP 100 above")
	test := testFlags(flags)
	var sets list
	flags.Var(&sets, "set", "a setting for all nodes, `KEY=VALUE`; may be repeated")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("dev: unexpected argument %q; nodes are stopped by Ctrl-C, or by kill and their process ids", flags.Arg(0))
	}
	if *count < 1 || *count > 7 || *base < 1 || *base+devPeers+*count > 65536 {
		return errors.New("dev: 1 to 7 nodes, and ports below 65536")
	}
	dir, err := filepath.Abs(*dataDir)
	if err != nil {
		return err
	}
	nodes, err := devNodes(*count, *base, dir, sets)
	if err != nil {
		return err
	}
	if err := devPortsFree(*count, *base); err != nil {
		return err
	}
	if err := devCertificates(filepath.Join(dir, certsFolder), *count); err != nil {
		return err
	}
	if *serviceBus {
		if err := devServiceBus(nodes, filepath.Join(dir, certsFolder), *base); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		if *test {
			n.args = append(n.args, "--unsafe-test-options")
		}
		if err := n.write(); err != nil {
			return err
		}
	}
	if err := devRun(nodes, *pidFile, *detach, out); err != nil {
		devStop(nodes)
		return err
	}
	return nil
}

// devNodes prepares the nodes, and the files of settings that they are started with.
func devNodes(count, base int, dir string, sets []string) ([]*devNode, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var nodes []*devNode
	for k := 1; k <= count; k++ {
		n := &devNode{
			number: k, ended: make(chan struct{}), home: filepath.Join(dir, devName(k)),
			amqp: "127.0.0.1:" + strconv.Itoa(base+k-1), http: "127.0.0.1:" + strconv.Itoa(base+devHTTP+k-1),
		}
		n.args = []string{self, "server", "--config", n.file()}
		n.set("node_name", devName(k))
		n.set("data_dir", n.home)
		n.set("listeners.tcp.default", n.amqp)
		n.set("management.tcp.listener", n.http)
		n.set("prometheus.tcp.listener", "127.0.0.1:"+strconv.Itoa(base+devMetrics+k-1))
		n.set("cluster.listener", "127.0.0.1:"+strconv.Itoa(base+devPeers+k-1))
		for to := 1; to <= count; to++ {
			n.set(nodesKey+strconv.Itoa(to), fmt.Sprintf("%s@127.0.0.1:%d", devName(to), base+devPeers+to-1))
		}
		n.set("cluster.ssl_options.cacertfile", filepath.Join(dir, certsFolder, certs.AuthorityFile))
		n.set("cluster.ssl_options.certfile", filepath.Join(dir, certsFolder, devName(k)+".pem"))
		n.set("cluster.ssl_options.keyfile", filepath.Join(dir, certsFolder, devName(k)+".key"))
		n.set("log.file", n.log())
		for _, s := range sets {
			key, value, ok := strings.Cut(s, "=")
			if !ok {
				return nil, fmt.Errorf("--set %s: not KEY=VALUE", s)
			}
			n.set(key, value)
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// file is where the node's settings are, log where its log is, and complaints what it writes
// besides if it is to outlive dev.
func (n *devNode) file() string       { return filepath.Join(n.home, "quorate.conf") }
func (n *devNode) log() string        { return filepath.Join(n.home, "quorate.log") }
func (n *devNode) complaints() string { return filepath.Join(n.home, "stderr.log") }

// set adds a setting, or replaces an earlier one.
func (n *devNode) set(key, value string) {
	n.settings = slices.DeleteFunc(n.settings, func(s [2]string) bool { return s[0] == key })
	n.settings = append(n.settings, [2]string{key, value})
}

// setting is the value of a setting that the node is started with.
func (n *devNode) setting(key string) (value string, ok bool) {
	for _, s := range n.settings {
		if s[0] == key {
			return s[1], true
		}
	}
	return "", false
}

// write writes the file of settings, which only the user can read, as there may be a password in it.
func (n *devNode) write() error {
	text := "# Written by quorate dev at each of its starts. quorate server --config starts this node alone.\n"
	for _, s := range n.settings {
		value, err := quoteValue(s[1])
		if err != nil {
			return fmt.Errorf("dev: setting %s: %w", s[0], err)
		}
		text += s[0] + " = " + value + "\n"
	}
	if err := os.MkdirAll(n.home, 0o700); err != nil {
		return err
	}
	return certs.WritePrivate(n.file(), []byte(text)) // the node may be started again by its command after a power loss
}

// devName returns the name of a node.
func devName(k int) string { return "n" + strconv.Itoa(k) }

// devRenew is how long before its expiry a certificate is replaced.
const devRenew = 30 * 24 * time.Hour

// devCertificates creates the authority and the nodes' certificates in a folder, as far as they are
// missing or about to expire.
func devCertificates(dir string, count int) error {
	authority, node := certs.NewTerms(certs.AuthorityLife), certs.NewTerms(certs.NodeLife)
	if _, err := os.Stat(filepath.Join(dir, certs.AuthorityFile)); errors.Is(err, fs.ErrNotExist) {
		if _, err := certs.Init(dir, authority); err != nil {
			return fmt.Errorf("dev: certificates: %w", err)
		}
	}
	for k := 1; k <= count; k++ {
		have, err := certs.List(filepath.Join(dir, devName(k)+".pem"))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			_, err = certs.Node(dir, devName(k), node)
		case err == nil && time.Until(have[0].Certificate.NotAfter) < devRenew:
			_, err = certs.RotateNode(dir, devName(k), node)
		}
		if err != nil {
			return fmt.Errorf("dev: certificates: %w", err)
		}
	}
	return nil
}

// devPortsFree returns an error if a port is in use: the process listening there would be taken for
// one of the started nodes.
func devPortsFree(count, base int) error {
	for _, above := range []int{0, devHTTP, devMetrics, devPeers} {
		for k := range count {
			address := fmt.Sprintf("127.0.0.1:%d", base+above+k)
			l, err := net.Listen("tcp", address)
			if err != nil {
				return fmt.Errorf("dev: node %d cannot listen: %w; is another cluster running? --base-port chooses other ports", k+1, err)
			}
			l.Close()
		}
	}
	return nil
}

// devRun starts the nodes, reports when they are ready, and waits.
func devRun(nodes []*devNode, pidFile string, detach bool, out io.Writer) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	var pids []string
	for _, n := range nodes {
		if err := n.start(detach); err != nil {
			return err
		}
		if detach {
			defer n.complain()
		}
		pids = append(pids, strconv.Itoa(n.process.Process.Pid))
	}
	if pidFile != "" {
		if err := os.WriteFile(pidFile, []byte(strings.Join(pids, "\n")+"\n"), 0o600); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), devReady)
	defer cancel()
	for _, n := range nodes {
		if err := n.awaitReady(ctx, stop); err != nil {
			return err
		}
		fmt.Fprintf(out, "node %d command: %s\n", n.number, shellQuote(n.args))
		more := ""
		if n.bus != "" {
			more = " servicebus=" + n.busAMQP + " management=" + n.bus
		}
		fmt.Fprintf(out, "node %d ready amqp=%s http=%s%s pid=%d\n", n.number, n.amqp, n.http, more, n.process.Process.Pid)
	}
	fmt.Fprintln(out, "cluster ready")
	fmt.Fprint(out, devWelcome(nodes, detach))
	if detach {
		return nil
	}
	return devWatch(nodes, stop, out)
}

// devWelcome says what a person does with the cluster.
func devWelcome(nodes []*devNode, detached bool) string {
	var b strings.Builder
	first := nodes[0]
	user, password, who := "guest", "guest", "user guest, password guest"
	_, otherUser := first.setting("default_user")
	_, otherPassword := first.setting("default_pass")
	if otherUser || otherPassword {
		user, password, who = "USER", "PASSWORD", "the user and password of the settings"
	}
	var uris, logs, pids []string
	for _, n := range nodes {
		uris = append(uris, fmt.Sprintf("amqp://%s:%s@%s/", user, password, n.amqp))
		logs, pids = append(logs, n.log()), append(pids, strconv.Itoa(n.process.Process.Pid))
	}
	line := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "  %-10s "+format+"\n", append([]any{what}, args...)...)
	}
	b.WriteByte('\n')
	line("Console", "http://%s/ (%s)", first.http, who)
	for i, what := 0, "AMQP"; i < len(uris); i, what = i+1, "" {
		line(what, "%s", uris[i])
	}
	for i, what := 0, "Logs"; i < len(logs); i, what = i+1, "" {
		line(what, "%s", logs[i])
	}
	for i, what := 0, "ServiceBus"; i < len(nodes) && nodes[i].busAMQP != ""; i, what = i+1, "" {
		line(what, "Endpoint=sb://%s;SharedAccessKeyName=%s;SharedAccessKey=%s;UseDevelopmentEmulator=true;", nodes[i].busAMQP, rootRule, devBusKey)
	}
	for i, what := 0, "Management"; i < len(nodes) && nodes[i].bus != ""; i, what = i+1, "" {
		line(what, "Endpoint=sb://%s;SharedAccessKeyName=%s;SharedAccessKey=%s;UseDevelopmentEmulator=true;", nodes[i].bus, rootRule, devBusKey)
	}
	last := nodes[len(nodes)-1]
	if len(nodes) > 1 {
		line("Survives", "kill -9 %d kills %s; no confirmed message is lost, and clients continue on the other nodes", last.process.Process.Pid, devName(last.number))
	}
	line("Again", "%s", shellQuote(last.args))
	if detached {
		line("Stop", "kill %s", strings.Join(pids, " "))
	} else {
		line("Stop", "Ctrl-C; the data in %s is kept", filepath.Dir(first.home))
	}
	return b.String()
}

// devWatch reports which nodes end, until it is told to stop the others. It continues when none is
// left: nodes may have been restarted by their commands.
func devWatch(nodes []*devNode, stop <-chan os.Signal, out io.Writer) error {
	ended := make(chan *devNode, len(nodes))
	for _, n := range nodes {
		go func() {
			<-n.ended
			ended <- n
		}()
	}
	for left := len(nodes); ; {
		select {
		case <-stop:
			return devStop(nodes)
		case n := <-ended:
			left--
			fmt.Fprintf(out, "node %d has exited: %s; its command starts it again; %d of %d are still running\n",
				n.number, n.process.ProcessState, left, len(nodes))
		}
	}
}

// start runs the node in a process group of its own, so that Ctrl-C reaches it only in our order.
// A detached one has nothing open that the caller of dev may wait for the end of.
func (n *devNode) start(detached bool) error {
	n.process = exec.Command(n.args[0], n.args[1:]...)
	n.process.Stderr = os.Stderr
	if detached {
		f, err := os.OpenFile(n.complaints(), os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("node %d: %w", n.number, err)
		}
		defer f.Close()
		n.process.Stderr = f
	}
	n.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := n.process.Start(); err != nil {
		return fmt.Errorf("node %d: %w", n.number, err)
	}
	go func() {
		_ = n.process.Wait() // its log says how it ended
		close(n.ended)
	}()
	return nil
}

// complain shows what a detached node has written so far.
func (n *devNode) complain() {
	text, _ := os.ReadFile(n.complaints()) // start has created it
	_, _ = os.Stderr.Write(text)
}

// awaitReady returns when the node serves clients.
func (n *devNode) awaitReady(ctx context.Context, stop <-chan os.Signal) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-n.ended:
			return fmt.Errorf("node %d has exited: %s", n.number, n.process.ProcessState)
		default:
		}
		if n.ready(ctx) {
			return nil
		}
		select {
		case <-n.ended:
			return fmt.Errorf("node %d has exited: %s", n.number, n.process.ProcessState)
		case <-stop:
			return errors.New("stopped before the cluster was ready")
		case <-ctx.Done():
			return fmt.Errorf("node %d was not ready within %s", n.number, devReady)
		case <-tick.C:
		}
	}
}

func (n *devNode) ready(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.http+"/api/health/checks/ready-to-serve-clients", nil)
	if err != nil {
		return false
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// devStop stops the nodes cleanly, one after the other.
func devStop(nodes []*devNode) error {
	var errs []error
	for _, n := range nodes {
		if n.process == nil || n.process.Process == nil {
			continue
		}
		if err := n.process.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, err)
			continue
		}
		select {
		case <-n.ended:
		case <-time.After(stopWait + 10*time.Second):
			errs = append(errs, fmt.Errorf("node %d did not stop and is killed", n.number), n.process.Process.Kill())
		}
	}
	return errors.Join(errs...)
}

// plainCharacters have no special meaning to a shell, wherever they stand.
const plainCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%"

// shellQuote quotes a command so that a shell reads it back unchanged.
func shellQuote(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		if a == "" || strings.Trim(a, plainCharacters) != "" {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		quoted[i] = a
	}
	return strings.Join(quoted, " ")
}
