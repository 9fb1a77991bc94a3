//go:build !race

package raftlog

const thorough = 1
