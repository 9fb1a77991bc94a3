package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
)

const (
	// rabbitScripts hold the programs themselves; those in /usr/sbin change the user.
	rabbitScripts = "/usr/lib/rabbitmq/bin"
	rabbitNodes   = 3
	rabbitStart   = 2 * time.Minute
	rabbitStop    = 30 * time.Second
	rabbitPoll    = 200 * time.Millisecond
	installTime   = 5 * time.Minute
)

// rabbit is a RabbitMQ cluster on loopback with its own folders, ports and port mapper.
type rabbit struct {
	dir   string
	root  string // the file system that it is installed in; empty: this one
	ports []int  // AMQP and distribution of each node, then the port mapper's
	epmd  *exec.Cmd
	nodes [rabbitNodes]*exec.Cmd
	// served is how clients reach the nodes; its process ids are those of the virtual machines, 0
	// for one that never came up.
	served *target
}

// onRabbit starts a cluster, lets the bench measure it, and stops it.
func (b *bench) onRabbit(root string, measure func()) error {
	return inFolder(b.lab.dir, func(dir string) error {
		r := &rabbit{dir: dir, root: root, served: &target{queueType: "quorum", pids: make([]int, rabbitNodes)}}
		err := try(func() {
			r.start(b.ctx)
			b.on, b.target = r, r.served
			measure()
		})
		return errors.Join(err, r.stop())
	})
}

// installRabbit installs Debian's package if it is missing, and returns its version. Nothing is
// installed in a file system other than this one.
func installRabbit(ctx context.Context, root string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	query := []string{"-W", "-f", "${Version}", "rabbitmq-server"}
	_, err := os.Stat(filepath.Join(root+rabbitScripts, "rabbitmq-server"))
	switch {
	case root != "" && err != nil:
		return "", err
	case root != "":
		query = append([]string{"--root", root}, query...)
	case err != nil:
		// No server may start by itself: the package's service stays off.
		cmd := exec.CommandContext(ctx, "apt-get", "install", "-y", "--no-install-recommends", "rabbitmq-server")
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("apt-get install rabbitmq-server: %w\n%s", err, out)
		}
	}
	out, err := exec.CommandContext(ctx, "dpkg-query", query...).Output()
	if err != nil && root == "" {
		return "unknown version", nil // not from a package
	}
	return string(out), err
}

// start starts the cluster and waits until all nodes have joined it.
func (r *rabbit) start(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, rabbitStart)
	defer cancel()
	r.ports = get(cluster.Ports(2*rabbitNodes + 1))
	r.configure()
	epmd := r.command(context.Background(), "epmd", "-port", strconv.Itoa(r.ports[2*rabbitNodes]), "-address", "127.0.0.1")
	must(cluster.Launch(epmd, filepath.Join(r.dir, "epmd.log")))
	r.epmd = epmd
	for i := range rabbitNodes {
		r.served.uris = append(r.served.uris, r.uri(i))
		must(r.launch(i))
	}
	for i := range rabbitNodes {
		must(r.await(ctx, i))
	}
	get(r.control(ctx, 0, "await_online_nodes", strconv.Itoa(rabbitNodes)))
}

// inRoot is a shell command that runs its arguments after the first two in a root file system, the
// first one, where the folder that is the second one is the same folder. It needs root's rights;
// what it mounts is gone with its processes.
const inRoot = `mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mkdir -p "$0$1" && mount --bind "$1" "$0$1" && root=$0 && shift && exec chroot "$root" "$@"`

// command is a program of the file system in which RabbitMQ is installed.
func (r *rabbit) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	if r.root == "" {
		return exec.CommandContext(ctx, name, args...)
	}
	return exec.CommandContext(ctx, "unshare", append([]string{"-m", "--propagation", "private", "sh", "-c", inRoot, r.root, r.dir, name}, args...)...)
}

// launch starts a node and appends its output to its log.
func (r *rabbit) launch(i int) error {
	cmd := r.command(context.Background(), filepath.Join(rabbitScripts, "rabbitmq-server"))
	cmd.Env = r.env(i)
	if err := cluster.Launch(cmd, filepath.Join(r.dir, fmt.Sprintf("node%d.log", i))); err != nil {
		return err
	}
	r.nodes[i] = cmd
	return nil
}

// control runs rabbitmqctl against a node and returns its output.
func (r *rabbit) control(ctx context.Context, node int, args ...string) (string, error) {
	cmd := r.command(ctx, filepath.Join(rabbitScripts, "rabbitmqctl"), args...)
	cmd.Env = r.env(node)
	var out, log strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("rabbitmqctl %s: %w\n%s%s", args[0], err, &out, &log)
	}
	return out.String(), nil
}

// leader returns the node that leads a quorum queue.
func (r *rabbit) leader(ctx context.Context, queue string) (int, error) {
	out, err := r.control(ctx, 0, "--quiet", "list_queues", "--no-table-headers", "name", "leader")
	if err != nil {
		return 0, err
	}
	return leaderIn(out, queue, r.name)
}

// leaderIn finds a queue's line with its name and its leader, and returns the leader's number.
func leaderIn(lines, queue string, name func(node int) string) (int, error) {
	for line := range strings.Lines(lines) {
		f := strings.Fields(line)
		if len(f) != 2 || f[0] != queue {
			continue
		}
		for i := range rabbitNodes {
			if f[1] == name(i) {
				return i, nil
			}
		}
	}
	return 0, fmt.Errorf("no leader of %s among\n%s", queue, lines)
}

// kill kills the virtual machine of a node.
func (r *rabbit) kill(_ context.Context, node int) error {
	if err := syscall.Kill(r.served.pids[node], syscall.SIGKILL); err != nil {
		return err
	}
	cluster.End(r.nodes[node], rabbitStop)
	return nil
}

func (r *rabbit) rejoin(ctx context.Context, node int) error {
	ctx, cancel := context.WithTimeout(ctx, rabbitStart)
	defer cancel()
	if err := os.Remove(r.pidFile(node)); err != nil {
		return err
	}
	if err := r.launch(node); err != nil {
		return err
	}
	return r.await(ctx, node)
}

func (r *rabbit) name(i int) string { return fmt.Sprintf("bench%d@localhost", i+1) }

func (r *rabbit) configure() {
	conf := "loopback_users.guest = true\ncluster_formation.peer_discovery_backend = classic_config\n"
	for i := range rabbitNodes {
		conf += fmt.Sprintf("cluster_formation.classic_config.nodes.%d = %s\n", i+1, r.name(i))
	}
	for file, text := range map[string]string{
		"rabbitmq.conf": conf, "enabled_plugins": "[].\n", "env.conf": "", ".erlang.cookie": fmt.Sprintf("BENCH%d", os.Getpid()),
	} {
		must(os.WriteFile(filepath.Join(r.dir, file), []byte(text), 0o400))
	}
}

// env is the environment of a node and of tools that talk to it.
func (r *rabbit) env(i int) []string {
	path := func(name string) string { return filepath.Join(r.dir, name) }
	return append(os.Environ(),
		"HOME="+r.dir, "ERL_EPMD_PORT="+strconv.Itoa(r.ports[2*rabbitNodes]), "ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_NODENAME="+r.name(i), "RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		"RABBITMQ_NODE_PORT="+strconv.Itoa(r.ports[2*i]), "RABBITMQ_DIST_PORT="+strconv.Itoa(r.ports[2*i+1]),
		"RABBITMQ_MNESIA_BASE="+path("mnesia"), "RABBITMQ_LOG_BASE="+path("log"),
		"RABBITMQ_PID_FILE="+r.pidFile(i), "RABBITMQ_CONFIG_FILE="+path("rabbitmq"),
		"RABBITMQ_CONF_ENV_FILE="+path("env.conf"), "RABBITMQ_ENABLED_PLUGINS_FILE="+path("enabled_plugins"),
		"RABBITMQ_GENERATED_CONFIG_DIR="+path("generated"))
}

func (r *rabbit) pidFile(i int) string { return filepath.Join(r.dir, fmt.Sprintf("node%d.pid", i)) }

// await waits until a node accepts connections, and records its process id.
func (r *rabbit) await(ctx context.Context, i int) error {
	return await.Until(ctx, rabbitPoll, fmt.Sprintf("RabbitMQ node %d, whose logs are in %s", i+1, r.dir), func() (bool, error) {
		conn, err := client.Connect(ctx, r.uri(i))
		if err != nil {
			return false, err
		}
		_ = conn.Close()
		text, err := os.ReadFile(r.pidFile(i))
		if err == nil {
			r.served.pids[i], err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err == nil, err
	})
}

func (r *rabbit) uri(i int) string {
	return fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", r.ports[2*i])
}

// stop stops what start has started: first the virtual machines, cleanly, then whatever is left of
// their process groups, and the port mapper.
func (r *rabbit) stop() error {
	var errs []error
	for _, pid := range r.served.pids {
		if pid == 0 {
			continue // it never came up
		}
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("process %d: %w", pid, err))
		}
	}
	for i, cmd := range r.nodes {
		grace := rabbitStop
		if r.served.pids[i] == 0 {
			grace = 0
		}
		if cmd != nil {
			cluster.End(cmd, grace)
		}
	}
	if r.epmd != nil {
		cluster.End(r.epmd, 0)
	}
	return errors.Join(errs...)
}
