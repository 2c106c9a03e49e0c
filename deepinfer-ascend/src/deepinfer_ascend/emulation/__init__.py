"""The vendor's operators on a CPU, in plain torch: schemas as the vendor declares them, and what
they compute behind them. For tests of this plugin where there is no NPU; slow, and no part of what
runs on one.
"""
