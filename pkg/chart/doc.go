// Package chart draws charts into PNG and SVG files: lines with marks, stacked areas,
// bars, and strips of heat. A Picture is one or more panels, one below the other, each
// 1,200 pixels wide.
//
// It is a layer over gonum.org/v1/plot, which places axes and text. That needs no C
// library, no font of the system and no display, and the same input gives the same
// bytes. Here are the choices that all charts share (colours that are told apart
// without red and green, sizes of text, limits of axes), and the checks without which
// the library would panic or draw nothing: what cannot be drawn is an error that names
// the fault.
//
// Nothing here knows what it draws.
package chart
