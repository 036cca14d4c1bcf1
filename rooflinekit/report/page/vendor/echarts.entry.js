import { LabelLayout } from "echarts/features";
import { use, init } from "echarts/core";
import { BarChart, CustomChart, LineChart, ScatterChart } from "echarts/charts";
import { GridComponent, TooltipComponent, MarkLineComponent } from "echarts/components";
import { SVGRenderer, CanvasRenderer } from "echarts/renderers";
use([LabelLayout, BarChart, CustomChart, LineChart, ScatterChart, GridComponent, TooltipComponent, MarkLineComponent, SVGRenderer, CanvasRenderer]);
export { init };
