package clients

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
)

var javaClasses = flag.String("clients.classes", "functional.DeadLetterExchange,server.XDeathHeaderGrowth,functional.QueueLease,"+
	"functional.BindingLifecycle,functional.FrameMax,functional.ConnectionRecovery", "test classes of the Java client that TestJavaSuite runs, separated by commas")

// amqpPort is where the tests of other clients look for a server.
const amqpPort = "127.0.0.1:5672"

// earlier are settings with which a node is like the servers those tests are
// written for, where RabbitMQ itself has changed since.
var earlier = []string{"--set=initial_frame_max=4096", "--set=dead_letter_compatibility=3"}

// classLimit bounds one class. ConnectionRecovery makes 105,000 changes of
// definitions, one after the other, each of which three nodes keep.
const classLimit = 40 * time.Minute

// mustSource unpacks the sources of a Debian package. What Debian adds to them
// is not needed.
func mustSource(t *testing.T, pkg string) (folder string) {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "apt-get", "source", "--download-only", "--tar-only", pkg)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	archives, _ := filepath.Glob(filepath.Join(dir, pkg+"_*.orig.tar.*"))
	if len(archives) == 0 {
		t.Skipf("apt-get source %s: %v (are deb-src entries enabled?)\n%s", pkg, err, out)
	}
	if out, err := exec.CommandContext(t.Context(), "tar", "-xf", archives[0], "-C", dir).CombinedOutput(); err != nil {
		t.Skipf("tar: %v\n%s", err, out)
	}
	folders, _ := filepath.Glob(filepath.Join(dir, "*", "/"))
	for _, f := range folders {
		if s, err := os.Stat(f); err == nil && s.IsDir() {
			return f
		}
	}
	t.Skipf("%s holds no folder", archives[0])
	return ""
}

// mustServe starts three nodes, the first of which is found at amqpPort.
func mustServe(t *testing.T) (*cluster.Cluster, *forwarded) {
	t.Helper()
	c := mustStart(t, t.Context(), earlier...)
	return c, mustForward(t, amqpPort, c.Nodes[0].AMQP)
}

// TestPerlSuite runs the main file of the tests that ship with AnyEvent::RabbitMQ.
func TestPerlSuite(t *testing.T) {
	if !*suite {
		t.Skip("-clients.suite is not given")
	}
	if out, err := exec.CommandContext(t.Context(), "perl", "-MAnyEvent::RabbitMQ", "-MTest::Exception", "-e", "1").CombinedOutput(); err != nil {
		t.Skip(missing(fmt.Sprintf("libanyevent-rabbitmq-perl, libtest-exception-perl: %v\n%s", err, out)))
	}
	folder := mustSource(t, "libanyevent-rabbitmq-perl")
	mustServe(t)
	out, err := exec.CommandContext(t.Context(), "perl", filepath.Join(folder, "xt", "04_anyevent.t")).CombinedOutput()
	passed := len(regexp.MustCompile(`(?m)^ok \d`).FindAll(out, -1))
	t.Logf("%d tests have passed", passed)
	if err != nil || passed == 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestJavaSuite runs classes of the tests that ship with RabbitMQ's Java client.
func TestJavaSuite(t *testing.T) {
	if !*suite {
		t.Skip("-clients.suite is not given")
	}
	if _, err := exec.LookPath("javac"); err != nil {
		t.Skip(missing(err.Error()))
	}
	jars, err := classPath(jarFolder, "amqp-client.jar", "slf4j-api.jar", "slf4j-nop.jar", "junit4.jar", "hamcrest-all.jar",
		"mockito-core.jar", "byte-buddy.jar", "byte-buddy-agent.jar", "objenesis.jar", "commons-lang3.jar", "metrics-core.jar")
	if err != nil {
		t.Skip(err)
	}
	sources := filepath.Join(mustSource(t, "rabbitmq-java-client"), "src", "test", "java")
	compiled := t.TempDir()
	compile := exec.CommandContext(t.Context(), "javac", "-nowarn", "-cp", jars, "-sourcepath", ".", "-d", compiled)
	classes := strings.Split(*javaClasses, ",")
	for _, class := range classes {
		compile.Args = append(compile.Args, filepath.Join("com/rabbitmq/client/test", strings.ReplaceAll(class, ".", "/")+".java"))
	}
	compile.Dir = sources
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c, f := mustServe(t)
	tools := mustStandIn(t, c, f)
	for _, class := range classes {
		t.Run(class, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), classLimit)
			defer cancel()
			args := append([]string{"-cp", compiled + ":" + jars}, tools...)
			began := time.Now()
			out, err := exec.CommandContext(ctx, "java", append(args, "org.junit.runner.JUnitCore", "com.rabbitmq.client.test."+class)...).CombinedOutput()
			passed := regexp.MustCompile(`(?m)^OK \(.*\)$`).Find(out)
			t.Logf("%s in %v", passed, time.Since(began).Round(time.Second))
			if err != nil || passed == nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
