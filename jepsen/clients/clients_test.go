package clients

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// limit bounds the whole test.
const limit = 4 * time.Minute

// library is a client library under test.
type library struct {
	name string
	// prepare makes its program ready in a folder of its own. A reason why it
	// cannot run here is an error.
	prepare func(ctx context.Context, dir string) (*exec.Cmd, error)
}

var libraries = []library{
	{"amqp091-go", func(ctx context.Context, _ string) (*exec.Cmd, error) {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), runGoClient+"=1")
		return cmd, nil
	}},
	{"pika", python("pika", "pika_client.py")},
	{"kombu", python("kombu", "kombu_client.py")},
	{"bunny", script([]string{"ruby"}, []string{"-e", "require 'bunny'"}, "bunny_client.rb")},
	{"php-amqplib", script([]string{"php"}, []string{"-r", "exit(@include_once('PhpAmqpLib/autoload.php') ? 0 : 1);"}, "php_client.php")},
	{"amqplib", node},
	{"librabbitmq", librabbitmq},
	{"java", java},
}

func TestMain(m *testing.M) {
	if os.Getenv(runGoClient) != "" {
		goClient(strings.Split(os.Args[1], ","), os.Args[2])
		return
	}
	os.Exit(m.Run())
}

// TestLibraries takes all libraries through all steps at the same time. The
// node that all of them are connected to is killed once, when all are ready.
func TestLibraries(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := mustStart(t, ctx)
	victim := c.Nodes[2]
	t.Cleanup(func() {
		if !victim.Alive() {
			if err := victim.Restart(); err != nil {
				t.Error(err)
			} else if err := victim.AwaitReady(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	programs := make([]*program, len(libraries))
	var ready sync.WaitGroup // for the kill
	killed := make(chan struct{})
	for i, l := range libraries {
		p := &program{ctx: ctx, cluster: c, ready: sync.OnceFunc(ready.Done), killed: killed, ended: make(chan struct{})}
		programs[i] = p
		ready.Add(1)
		folder := t.TempDir()
		go func() {
			defer close(p.ended)
			defer p.ready()
			var cmd *exec.Cmd
			if cmd, p.missing = l.prepare(ctx, folder); p.missing == nil {
				p.err = p.run(cmd, strings.ReplaceAll(l.name, "-", "")+".client")
			}
		}()
	}
	ready.Wait()
	if err := victim.Kill(ctx); err != nil {
		t.Error(err)
	}
	close(killed)
	for i, l := range libraries {
		t.Run(l.name, func(t *testing.T) { programs[i].report(t) })
	}
}

// python is a program for the first interpreter that has the module.
func python(module, file string) func(context.Context, string) (*exec.Cmd, error) {
	return script([]string{"python3", "/usr/bin/python3"}, []string{"-c", "import " + module}, file)
}

// script is a program for the first interpreter that passes a check.
func script(interpreters, check []string, file string) func(context.Context, string) (*exec.Cmd, error) {
	return func(ctx context.Context, _ string) (*exec.Cmd, error) {
		var why error
		for _, i := range interpreters {
			out, err := exec.CommandContext(ctx, i, check...).CombinedOutput()
			if err == nil {
				return exec.CommandContext(ctx, i, filepath.Join("testdata", file)), nil
			}
			why = fmt.Errorf("not installed: %s %q: %w %s", i, check, err, out)
		}
		return nil, why
	}
}

func node(ctx context.Context, _ string) (*exec.Cmd, error) {
	root, err := exec.CommandContext(ctx, "npm", "root", "--global").Output()
	if err != nil {
		return nil, fmt.Errorf("not installed: npm: %w", err)
	}
	env := append(os.Environ(), "NODE_PATH="+strings.TrimSpace(string(root)))
	check := exec.CommandContext(ctx, "node", "-e", "require('amqplib')")
	check.Env = env
	if err := check.Run(); err != nil {
		return nil, fmt.Errorf("not installed: amqplib for node: %w", err)
	}
	cmd := exec.CommandContext(ctx, "node", filepath.Join("testdata", "node_client.js"))
	cmd.Env = env
	return cmd, nil
}

func librabbitmq(ctx context.Context, dir string) (*exec.Cmd, error) {
	binary := filepath.Join(dir, "client")
	out, err := exec.CommandContext(ctx, "cc", "-Wall", "-o", binary, filepath.Join("testdata", "c_client.c"), "-lrabbitmq").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("not installed: a C compiler and librabbitmq: %w\n%s", err, out)
	}
	return exec.CommandContext(ctx, binary), nil
}

func java(ctx context.Context, dir string) (*exec.Cmd, error) {
	const jars = "/usr/share/java/amqp-client.jar:/usr/share/java/slf4j-api.jar:/usr/share/java/slf4j-nop.jar"
	out, err := exec.CommandContext(ctx, "javac", "-cp", jars, "-d", dir, filepath.Join("testdata", "JavaClient.java")).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("not installed: a Java compiler and the Java client: %w\n%s", err, out)
	}
	return exec.CommandContext(ctx, "java", "-cp", dir+":"+jars, "JavaClient"), nil
}
