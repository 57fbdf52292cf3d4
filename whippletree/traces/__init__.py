"""Call trees and training samples."""
