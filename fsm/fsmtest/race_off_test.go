//go:build !race

package fsmtest

// raceDetector makes everything many times slower.
const raceDetector = false
