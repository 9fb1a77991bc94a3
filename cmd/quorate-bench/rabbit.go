package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
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

// rabbit is a RabbitMQ cluster on loopback with folders, ports and a port
// mapper of its own.
type rabbit struct {
	dir   string
	ports []int // AMQP and distribution of each node, then the port mapper's
	epmd  *exec.Cmd
	nodes []*exec.Cmd
	pids  []int // of the virtual machines
}

// installRabbit installs Debian's package if it is not there, and returns its version.
func installRabbit(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	if _, err := os.Stat(filepath.Join(rabbitScripts, "rabbitmq-server")); err != nil {
		// No server is to start by itself: the package's service stays off.
		cmd := exec.CommandContext(ctx, "apt-get", "install", "-y", "--no-install-recommends", "rabbitmq-server")
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("apt-get install rabbitmq-server: %w\n%s", err, out)
		}
	}
	out, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server").Output()
	if err != nil {
		return "unknown version", nil // not from a package
	}
	return string(out), nil
}

// startRabbit starts the cluster and waits until all nodes are in it.
func startRabbit(ctx context.Context, dir string) (*rabbit, error) {
	ctx, cancel := context.WithTimeout(ctx, rabbitStart)
	defer cancel()
	r := &rabbit{dir: dir}
	if err := r.start(ctx); err != nil {
		return nil, errors.Join(err, r.stop())
	}
	return r, nil
}

func (r *rabbit) start(ctx context.Context) (err error) {
	if r.ports, err = freePorts(2*rabbitNodes + 1); err != nil {
		return err
	}
	if err := r.configure(); err != nil {
		return err
	}
	r.epmd = exec.Command("epmd", "-port", strconv.Itoa(r.ports[2*rabbitNodes]), "-address", "127.0.0.1")
	if err := launch(r.epmd, filepath.Join(r.dir, "epmd.log"), nil); err != nil {
		r.epmd = nil
		return err
	}
	for i := range rabbitNodes {
		cmd := exec.Command(filepath.Join(rabbitScripts, "rabbitmq-server"))
		if err := launch(cmd, filepath.Join(r.dir, fmt.Sprintf("node%d.log", i)), r.env(i)); err != nil {
			return err
		}
		r.nodes = append(r.nodes, cmd)
	}
	for i := range rabbitNodes {
		if err := r.await(ctx, i); err != nil {
			return fmt.Errorf("RabbitMQ node %d: %w; its logs are in %s", i+1, err, r.dir)
		}
	}
	ctl := exec.CommandContext(ctx, filepath.Join(rabbitScripts, "rabbitmqctl"), "await_online_nodes", strconv.Itoa(rabbitNodes))
	ctl.Env = r.env(0)
	if out, err := ctl.CombinedOutput(); err != nil {
		return fmt.Errorf("RabbitMQ cluster: %w\n%s", err, out)
	}
	return nil
}

// freePorts finds ports on loopback that nobody listens on.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // after all have been found, so that they differ
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

func (r *rabbit) name(i int) string { return fmt.Sprintf("bench%d@localhost", i+1) }

func (r *rabbit) configure() error {
	var conf strings.Builder
	conf.WriteString("loopback_users.guest = true\ncluster_formation.peer_discovery_backend = classic_config\n")
	for i := range rabbitNodes {
		fmt.Fprintf(&conf, "cluster_formation.classic_config.nodes.%d = %s\n", i+1, r.name(i))
	}
	for file, text := range map[string]string{
		"rabbitmq.conf": conf.String(), "enabled_plugins": "[].\n", "env.conf": "",
		".erlang.cookie": fmt.Sprintf("BENCH%d", os.Getpid()),
	} {
		if err := os.WriteFile(filepath.Join(r.dir, file), []byte(text), 0o400); err != nil {
			return err
		}
	}
	return nil
}

// env is the environment of a node and of what speaks to it.
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

// launch starts a program in a process group of its own, with its output in a file.
func launch(cmd *exec.Cmd, log string, env []string) error {
	f, err := os.Create(log)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd.Stdout, cmd.Stderr, cmd.Env = f, f, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd.Start()
}

// await waits until a node takes connections and keeps its process id.
func (r *rabbit) await(ctx context.Context, i int) error {
	for {
		conn, _, err := connect(r.uri(i), false)
		if err == nil {
			_ = conn.Close()
			text, err := os.ReadFile(r.pidFile(i))
			if err != nil {
				return err
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			r.pids = append(r.pids, pid)
			return err
		}
		if waitErr := pause(ctx, rabbitPoll); waitErr != nil {
			return errors.Join(err, waitErr)
		}
	}
}

func (r *rabbit) uri(i int) string {
	return fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", r.ports[2*i])
}

func (r *rabbit) target() *target {
	t := &target{queueType: "quorum", pids: r.pids}
	for i := range rabbitNodes {
		t.uris = append(t.uris, r.uri(i))
	}
	return t
}

// stop ends what start has started: first the virtual machines, cleanly, then
// whatever is left of their process groups, and the port mapper.
func (r *rabbit) stop() error {
	var errs []error
	for _, pid := range r.pids {
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("process %d: %w", pid, err))
		}
	}
	for i, cmd := range r.nodes {
		grace := rabbitStop
		if i >= len(r.pids) {
			grace = 0 // it never came up
		}
		end(cmd, grace)
	}
	if r.epmd != nil {
		end(r.epmd, 0)
	}
	return errors.Join(errs...)
}

// end waits for a program and kills its process group if it takes too long.
func end(cmd *exec.Cmd, grace time.Duration) {
	kill := time.AfterFunc(grace, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer kill.Stop()
	_ = cmd.Wait() // how it ended is in its log
}
