package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// onDataFolder runs the server's program on a data folder, to recover a cluster or to read a log,
// since only that knows the data format of its version. It is searched for beside this program
// first.
func onDataFolder(args []string) (code int) {
	program := "quorate"
	if self, err := os.Executable(); err == nil {
		if beside := filepath.Join(filepath.Dir(self), program); isProgram(beside) {
			program = beside
		}
	}
	c := exec.Command(program, args...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := c.Run()
	var ended *exec.ExitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &ended):
		return exitFailed // it has reported why
	}
	fmt.Fprintln(os.Stderr, "Error: the server's program is needed to read a data folder:", err)
	return exitFailed
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
