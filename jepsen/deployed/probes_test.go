package deployed

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
)

var probed = flag.Bool("deployed.probes", false, "run TestProbes")

// quicker is by how much all times of the probes are divided.
const quicker = 10

// manifest is deploy/kubernetes/quorate.yaml, as text: its form is known, since it is rendered.
type manifest struct {
	*testing.T
	text string
}

func mustManifest(t *testing.T) manifest {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "kubernetes", "quorate.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return manifest{t, string(text)}
}

// find returns what the groups of an expression match.
func (m manifest) find(expression string) []string {
	m.Helper()
	found := regexp.MustCompile(expression).FindStringSubmatch(m.text)
	if found == nil {
		m.Fatalf("the manifests have no %s", expression)
	}
	return found[1:]
}

// probe is one of the three.
type probe struct {
	path            string
	period, timeout time.Duration
	threshold       int // failures in a row
}

func (m manifest) probe(name string) probe {
	m.Helper()
	f := m.find(name + `Probe:\s+httpGet: \{path: (\S+), port: https, scheme: HTTPS\}\s+periodSeconds: (\d+)\s+timeoutSeconds: (\d+)\s+failureThreshold: (\d+)`)
	seconds := func(s string) time.Duration {
		n, _ := strconv.Atoi(s)
		return time.Duration(n) * time.Second / quicker
	}
	n, _ := strconv.Atoi(f[3])
	return probe{f[0], seconds(f[1]), seconds(f[2]), n}
}

// pod is a node with the settings, the variables and the hook of the manifests. Its addresses and
// folders are its own, on this machine.
type pod struct {
	name    string
	args    []string
	env     []string
	https   string
	process *exec.Cmd
	ended   chan struct{}
}

// kubelet runs pods.
type kubelet struct {
	*testing.T
	ctx                          context.Context
	startup, liveness, readiness probe
	preStop                      []string
	grace                        time.Duration // of a stop, the hook included
	server, tool                 string
	pods                         []*pod
	http                         *http.Client
}

func (k *kubelet) must(err error) {
	k.Helper()
	if err != nil {
		k.Fatal(err)
	}
}

// ask asks one probe once.
func (k *kubelet) ask(p *pod, which probe) error {
	ctx, cancel := context.WithTimeout(k.ctx, which.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+p.https+which.path, nil)
	if err != nil {
		return err
	}
	res, err := k.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode >= 400 {
		return fmt.Errorf("%s: %s", which.path, res.Status)
	}
	return nil
}

// becomes asks a probe periodically until its state changes: to good with one success, to bad with
// as many failures in a row as it allows.
func (k *kubelet) becomes(p *pod, which probe, good bool) {
	k.Helper()
	failures := 0
	k.must(await.Until(k.ctx, which.period, fmt.Sprintf("%s of %s to be %t", which.path, p.name, good), func() (bool, error) {
		err := k.ask(p, which)
		if failures++; err == nil {
			failures = 0
		}
		return good == (err == nil) && (good || failures >= which.threshold), err
	}))
}

// stays asks a probe as often as it may fail, and it does not.
func (k *kubelet) stays(p *pod, which probe) {
	k.Helper()
	for range 2 * which.threshold {
		if err := k.ask(p, which); err != nil {
			k.Errorf("%s: %v", p.name, err)
		}
	}
}

// start starts a pod's container.
func (k *kubelet) start(p *pod) {
	k.Helper()
	p.process = exec.Command(k.server, p.args...)
	p.process.Env = append(os.Environ(), p.env...)
	p.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	k.must(p.process.Start())
	p.ended = make(chan struct{})
	go func(process *exec.Cmd, ended chan struct{}) {
		_ = process.Wait()
		close(ended)
	}(p.process, p.ended)
}

// started starts a pod and waits until it is ready.
func (k *kubelet) started(pods ...*pod) {
	k.Helper()
	for _, p := range pods {
		k.start(p)
	}
	for _, p := range pods {
		k.becomes(p, k.startup, true)
		k.becomes(p, k.readiness, true)
	}
}

// stop stops a pod in order: the hook, then SIGTERM, all within the grace period.
func (k *kubelet) stop(p *pod) {
	k.Helper()
	ctx, cancel := context.WithTimeout(k.ctx, k.grace)
	defer cancel()
	began := time.Now()
	hook := exec.CommandContext(ctx, k.tool, k.preStop...)
	hook.Env = append(os.Environ(), p.env...)
	if out, err := hook.CombinedOutput(); err != nil {
		k.Errorf("%s: preStop: %v\n%s", p.name, err, out)
	}
	k.becomes(p, k.readiness, false)
	k.stays(p, k.liveness)
	k.must(p.process.Process.Signal(syscall.SIGTERM))
	select {
	case <-p.ended:
		k.Logf("%s: drained and ended after %v", p.name, time.Since(began).Round(time.Millisecond))
	case <-ctx.Done():
		k.Fatalf("%s has not ended within %v", p.name, k.grace)
	}
}

// kill is what a node does to a container that it cannot stop.
func (k *kubelet) kill(p *pod) {
	k.Helper()
	k.must(p.process.Process.Kill())
	<-p.ended
}

// freeAddresses returns addresses on loopback that nothing listens at.
func (k *kubelet) freeAddresses(n int) (all []string) {
	k.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		k.must(err)
		defer l.Close()
		all = append(all, l.Addr().String())
	}
	return all
}

func mustKubelet(t *testing.T) *kubelet {
	t.Helper()
	m, dir := mustManifest(t), t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	k := &kubelet{T: t, ctx: ctx, startup: m.probe("startup"), liveness: m.probe("liveness"), readiness: m.probe("readiness")}
	k.http = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}} // as kubelet
	for word := range strings.SplitSeq(m.find(`preStop:\s+exec: \{command: \[/usr/bin/quoratectl, (.*)\]\}`)[0], ", ") {
		k.preStop = append(k.preStop, strings.Trim(word, `"`))
	}
	seconds, err := strconv.Atoi(m.find(`terminationGracePeriodSeconds: (\d+)`)[0])
	k.must(err)
	k.grace = time.Duration(seconds) * time.Second
	var errs [2]error
	k.server, errs[0] = cluster.BuildRelease(ctx, dir)
	k.tool, errs[1] = cluster.BuildTool(ctx, dir)
	k.must(errors.Join(errs[:]...))
	nodes, server := filepath.Join(dir, "etc/quorate/nodes"), filepath.Join(dir, "etc/quorate/server")
	if out, err := exec.CommandContext(ctx, k.tool, "certs", "ensure", "quorate-0", "quorate-1", "quorate-2", "--dir", nodes).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	k.must(os.MkdirAll(server, 0o700))
	for from, to := range map[string]string{"quorate-0.pem": "tls.crt", "quorate-0.key": "tls.key"} {
		k.must(os.Link(filepath.Join(nodes, from), filepath.Join(server, to)))
	}
	conf := regexp.MustCompile(`(?m)^    `).ReplaceAllString(m.find(`(?m)quorate\.conf: \|\n((?:    .*\n)+)`)[0], "")
	at, peers := k.freeAddresses(12), []string{}
	for i := range 3 {
		peers = append(peers, fmt.Sprintf("--set=cluster_formation.classic_config.nodes.%d=quorate-%d@%s", i+1, i, at[4*i]))
	}
	for i := range 3 {
		k.pods = append(k.pods, k.pod(m, dir, fmt.Sprint("quorate-", i), conf, at[4*i:4*i+4], peers))
	}
	t.Cleanup(func() {
		for _, p := range k.pods {
			if p.process != nil {
				_ = p.process.Process.Kill()
				<-p.ended
			}
		}
	})
	return k
}

// pod makes a pod of the manifests. at are the addresses of its listeners.
func (k *kubelet) pod(m manifest, dir, name, conf string, at, peers []string) *pod {
	k.Helper()
	local := strings.NewReplacer("/etc/quorate/", filepath.Join(dir, "etc/quorate")+"/", "/var/lib/quorate", filepath.Join(dir, name), "$(QUORATE_NODE_NAME)", name)
	file := filepath.Join(dir, name+".conf")
	k.must(os.WriteFile(file, []byte(local.Replace(conf)), 0o600))
	p := &pod{name: name, https: at[1], env: []string{
		"QUORATE_NODE_NAME=" + name, "QUORATE_DEFAULT_USER=operator", "QUORATE_DEFAULT_PASS=" + password,
		"QUORATECTL_USERNAME=operator", "QUORATECTL_PASSWORD=" + password, "QUORATECTL_NODE=" + at[2],
	}}
	for _, found := range regexp.MustCompile(`- name: (QUORATE_\w+)\n\s+value: (\S+)`).FindAllStringSubmatch(m.text, -1) {
		p.env = append(p.env, found[1]+"="+local.Replace(found[2]))
	}
	p.env = append(p.env, "QUORATE_CONFIG_FILE="+file)
	p.args = append([]string{
		"server", "--set=cluster.listener=" + at[0], "--set=management.tcp.listener=" + at[2], "--set=listeners.ssl.default=" + at[3],
		"--set=management.ssl.port=" + at[1][strings.LastIndex(at[1], ":")+1:], "--set=prometheus.ssl.port=none", "--set=log.file=" + filepath.Join(dir, name+".log"),
	}, peers...)
	return p
}

// The probes and the hook of the manifests, asked and called as kubelet does, of real nodes: a
// cluster that starts is ready; a pod that is stopped is not ready and not restarted, and ends in
// time; a process that hangs is restarted; and nodes without a majority are not.
func TestProbes(t *testing.T) {
	if !*probed {
		t.Skip("needs -deployed.probes")
	}
	k := mustKubelet(t)
	k.started(k.pods...)
	for i := len(k.pods) - 1; i >= 0; i-- { // as a StatefulSet does
		k.stop(k.pods[i])
		k.started(k.pods[i])
	}
	t.Log("rolling update: done")

	hung := k.pods[0]
	k.must(hung.process.Process.Signal(syscall.SIGSTOP))
	k.becomes(hung, k.readiness, false)
	k.becomes(hung, k.liveness, false)
	k.kill(hung)
	k.started(hung)
	t.Log("a process that hangs is restarted")

	k.kill(k.pods[1])
	k.kill(k.pods[2])
	k.becomes(hung, k.readiness, false)
	k.stays(hung, k.liveness)
	k.started(k.pods[1:]...)
	k.becomes(hung, k.readiness, true)
	t.Log("a node without a majority is not ready, and not restarted")
}
