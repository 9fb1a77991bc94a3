package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// ErrNoModule says that no folder above the working directory holds go.mod.
var ErrNoModule = errors.New("go.mod not found")

// Root is the folder of the module the working directory belongs to.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", ErrNoModule
		}
		dir = up
	}
}

// Build builds the server into dir and returns the path of the binary.
func Build(ctx context.Context, dir string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "quorate")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/quorate")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/quorate: %w\n%s", err, out)
	}
	return binary, nil
}
