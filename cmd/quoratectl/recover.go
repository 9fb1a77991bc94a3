package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// folderVerbs are those of the server's program, which alone knows the data format of its version.
func folderVerbs() []verb {
	return []verb{
		{name: "recover", arguments: "--data-dir DIR [--also DIR ...] [--yes] [--json]", maxArguments: -1, passes: true, run: func(c *call) error { return onDataFolder(c, "recover") },
			about: "turns a stopped node into the whole cluster when a majority is lost for good", more: " Without --yes it only shows what may be lost.", example: "--data-dir /var/lib/quorate"},
		{name: "log", about: "reads the log in the data folder of a stopped node", verbs: []verb{
			{name: "explain", arguments: "--data-dir DIR --queue NAME (--message-id ID | --message NUMBER) [--vhost VHOST] [--json]", maxArguments: -1, passes: true, run: func(c *call) error { return onDataFolder(c, "log", "explain") },
				about: "shows what happened to messages of a queue, as far as the log of a stopped node shows", example: "--data-dir /var/lib/quorate --queue orders --message-id 4711"},
		}},
	}
}

// onDataFolder runs the server's program on a data folder, however long it takes. It is searched for beside this program
// first.
func onDataFolder(c *call, verb ...string) error {
	program := "quorate"
	if self, err := os.Executable(); err == nil {
		if beside := filepath.Join(filepath.Dir(self), program); isProgram(beside) {
			program = beside
		}
	}
	p := exec.Command(program, append(verb, c.words...)...)
	p.Stdin, p.Stdout, p.Stderr = c.in, c.out, c.errOut
	err := p.Run()
	var ended *exec.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ended):
		return errReported
	}
	return fmt.Errorf("reading a data folder requires the server's program: %w", err)
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
