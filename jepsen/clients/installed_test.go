package clients

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// missing is what is not installed here.
type missing string

func (m missing) Error() string { return "not installed: " + string(m) }

// language is how programs of an interpreted language are run.
type language struct {
	interpreters []string
	// check makes the interpreter fail if it does not find a library.
	check func(library string) []string
	// env is what it needs beside the environment to find libraries.
	env func(ctx context.Context) ([]string, error)
}

var (
	python = language{
		interpreters: []string{"python3", "/usr/bin/python3"},
		check:        func(library string) []string { return []string{"-c", "import " + library} },
	}
	ruby = language{
		interpreters: []string{"ruby"},
		check:        func(library string) []string { return []string{"-e", "require '" + library + "'"} },
	}
	php = language{
		interpreters: []string{"php"},
		// The parentheses are about the value of include, not about the name.
		check: func(library string) []string {
			return []string{"-r", "exit((@include_once '" + library + "') ? 0 : 1);"}
		},
	}
	node = language{
		interpreters: []string{"node"},
		check:        func(library string) []string { return []string{"-e", "require('" + library + "')"} },
		env: func(ctx context.Context) ([]string, error) {
			root, err := exec.CommandContext(ctx, "npm", "root", "--global").Output()
			return []string{"NODE_PATH=" + strings.TrimSpace(string(root))}, err
		},
	}
)

// script is a program for the first interpreter that finds a library.
func script(l language, library, file string) func(context.Context, string) (*exec.Cmd, error) {
	return func(ctx context.Context, _ string) (*exec.Cmd, error) {
		env := os.Environ()
		if l.env != nil {
			more, err := l.env(ctx)
			if err != nil {
				return nil, missing(fmt.Sprintf("%s: %v", library, err))
			}
			env = append(env, more...)
		}
		var why error
		for _, i := range l.interpreters {
			check := exec.CommandContext(ctx, i, l.check(library)...)
			check.Env = env
			out, err := check.CombinedOutput()
			if err == nil {
				cmd := exec.CommandContext(ctx, i, filepath.Join("testdata", file))
				cmd.Env = env
				return cmd, nil
			}
			why = missing(fmt.Sprintf("%s: %s: %v %.500s", library, i, err, out))
		}
		return nil, why
	}
}

// librabbitmq is the C program.
func librabbitmq(ctx context.Context, dir string) (*exec.Cmd, error) {
	probe, binary := filepath.Join(dir, "probe.c"), filepath.Join(dir, "client")
	if err := os.WriteFile(probe, []byte("#include <amqp.h>\n#include <amqp_tcp_socket.h>\nint main(void) { return amqp_version_number() == 0; }\n"), 0o600); err != nil {
		return nil, err
	}
	compile := func(source string) (string, error) {
		out, err := exec.CommandContext(ctx, "cc", "-Wall", "-o", binary, source, "-lrabbitmq").CombinedOutput()
		return string(out), err
	}
	if out, err := compile(probe); err != nil {
		return nil, missing(fmt.Sprintf("a C compiler and librabbitmq: %v\n%s", err, out))
	}
	if out, err := compile(filepath.Join("testdata", "c_client.c")); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return exec.CommandContext(ctx, binary), nil
}

// jarFolder is where Debian installs the libraries of Java.
const jarFolder = "/usr/share/java"

// classPath is the path of libraries, which must be there.
func classPath(folder string, jars ...string) (string, error) {
	for i, jar := range jars {
		jars[i] = filepath.Join(folder, jar)
		if _, err := os.Stat(jars[i]); err != nil {
			return "", missing(err.Error())
		}
	}
	return strings.Join(jars, ":"), nil
}

// java is the Java program.
var java = javaProgram("JavaClient")

// javaProgram is a program for the Java client.
func javaProgram(name string) func(context.Context, string) (*exec.Cmd, error) {
	return func(ctx context.Context, dir string) (*exec.Cmd, error) {
		for _, tool := range []string{"javac", "java"} {
			if _, err := exec.LookPath(tool); err != nil {
				return nil, missing(err.Error())
			}
		}
		jars, err := classPath(jarFolder, "amqp-client.jar", "slf4j-api.jar", "slf4j-nop.jar")
		if err != nil {
			return nil, err
		}
		out, err := exec.CommandContext(ctx, "javac", "-cp", jars, "-d", dir, filepath.Join("testdata", name+".java")).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("%w\n%s", err, out)
		}
		return exec.CommandContext(ctx, "java", "-cp", dir+":"+jars, name), nil
	}
}

// A library that is not there is missing, whether or not its language is.
func TestMissing(t *testing.T) {
	const nothing = "no_such_library"
	fake := t.TempDir()
	for _, name := range []string{"python3", "ruby", "php", "node", "npm", "cc", "javac", "java"} {
		if err := os.WriteFile(filepath.Join(fake, name), []byte("#!/bin/sh\n[ \"$1\" = root ]\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	prepare := map[string]func(context.Context, string) (*exec.Cmd, error){
		"librabbitmq": librabbitmq,
		"java": func(context.Context, string) (*exec.Cmd, error) {
			_, err := classPath(jarFolder, nothing+".jar")
			return nil, err
		},
	}
	for name, l := range map[string]language{"python": python, "ruby": ruby, "php": php, "node": node} {
		prepare[name] = script(l, nothing, "")
	}
	for _, path := range []string{os.Getenv("PATH"), fake} {
		t.Setenv("PATH", path)
		for name, of := range prepare {
			if name == "librabbitmq" && path != fake {
				continue // it may be there
			}
			if cmd, err := of(t.Context(), t.TempDir()); !errors.As(err, new(missing)) {
				t.Errorf("%s with %s: %v, %v", name, path, cmd, err)
			}
		}
	}
}
