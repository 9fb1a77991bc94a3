//go:build race

package fsmtest

const raceDetector = true
